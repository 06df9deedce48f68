"""The examples of the documentation, with the results that it states; those of README.md, with what they print.

Sources: kubernetes.io "Common Expression Language in Kubernetes"; package documentation of
k8s.io/apiserver/pkg/cel/library; cel-go's ext/README.md and cel.OptionalTypes. What a real API server answers to the
same examples, and to many more, is in test_kubernetes_answers.
"""

import contextlib
import dataclasses
import io
import re
from pathlib import Path

import pytest

from kubecel import budget
from kubecel.errors import CelError
from kubecel_tests.evaluating import value

TRUE = {
    "lists": """
        [1, 2, 3].isSorted()
        !([2.0, 1.0].isSorted())
        [1, 3].sum() == 4
        [duration('1m'), duration('1s')].sum() == duration('1m1s')
        [1, 3].min() == 1 && [1, 3].max() == 3
        [1, 2, 2, 3].indexOf(2) == 1
        ['a', 'b', 'b', 'c'].lastIndexOf('b') == 2
        [1.0].indexOf(1.1) == -1
        [1, 2, 3].includes(2) && !('model-a'.includes('model-b'))
        [1, 2, 3, 4].slice(1, 3) == [2, 3]
        [[1], [2, 3], [4]].flatten() == [1, 2, 3, 4]
        [1, 2, 2, 3, 3, 3].distinct() == [1, 2, 3]
        lists.range(5) == [0, 1, 2, 3, 4]
        [5, 3, 1, 2].reverse() == [2, 1, 3, 5]
        ['b', 'c', 'a'].sort() == ['a', 'b', 'c']
        [1, 2, 3].last().value() == 3
        [].first().orValue('test') == 'test'
    """,
    "regular expressions": """
        'abc 123'.find('[0-9]+') == '123'
        'abc 123'.find('xyz') == ''
        '123 abc 456'.findAll('[0-9]+') == ['123', '456']
        '123 abc 456'.findAll('[0-9]+', 1) == ['123']
        '123 abc 456'.findAll('xyz') == []
    """,
    "quantities": """
        isQuantity('1.3Gi') && !(isQuantity('1,3G')) && !(isQuantity('200K')) && !(isQuantity('Three'))
        quantity('50000000G').isInteger() && quantity('50k').isInteger()
        !(quantity('9999999999999999999999999999999999999G').isInteger())
        quantity('50k').asInteger() == 50000
        quantity('50k').sub(20000).asApproximateFloat() == 30000.0
        quantity('50k').add(quantity('20k')) == quantity('70k')
        quantity('50k').add(20) == quantity('50020')
        quantity('50k').add(20).sub(quantity('100k')).sub(-50000) == quantity('20')
        quantity('200M').compareTo(quantity('0.2G')) == 0
        quantity('50M').compareTo(quantity('50Mi')) == -1
        quantity('150Mi').isGreaterThan(quantity('100Mi'))
        quantity('50M').isLessThan(quantity('100M'))
    """,
    "semantic versions": """
        isSemver('1.0.0') && !(isSemver('hello')) && !(isSemver('v1.0')) && isSemver('v1.0', true)
        semver('v1.0.0', true) == semver('1.0.0')
        semver('01.01.01', true) == semver('1.1.1')
        semver('1.2.3').major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3
        semver('1.2.3').compareTo(semver('2.0.0')) == -1
        semver('1.2.3').compareTo(semver('0.1.2')) == 1
    """,
    "addresses": """
        isIP('127.0.0.1') && isIP('::1') && !(isIP('127.0.0.256')) && !(isIP(':::1'))
        ip.isCanonical('127.0.0.1') && !(ip.isCanonical('2001:DB8::ABCD'))
        ip('::1').family() == 6 && ip('127.0.0.1').isLoopback() && ip('ff02::1').isLinkLocalMulticast()
        ip('192.168.0.1').isGlobalUnicast() && !(ip('255.255.255.255').isGlobalUnicast())
        cidr('192.168.0.0/24').containsIP('192.168.0.1')
        cidr('192.168.0.0/16').containsCIDR(cidr('192.168.10.0/24'))
        cidr('192.168.0.1/24').masked() == cidr('192.168.0.0/24')
        cidr('192.168.0.0/16').prefixLength() == 16
    """,
    "urls": """
        isURL('https://user:pass@example.com:80/path?query=val#fragment') && isURL('/absolute-path')
        !(isURL('https://a:b:c/')) && !(isURL('../relative-path'))
        url('https://example.com:80/').getHost() == 'example.com:80'
        url('https://[::1]:80/').getHostname() == '::1'
        url('https://example.com/path with spaces/').getEscapedPath() == '/path%20with%20spaces/'
        url('https://example.com/path?k1=a&k2=b&k2=c').getQuery() == {'k1': ['a'], 'k2': ['b', 'c']}
    """,
    "strings": """
        'hello'.charAt(4) == 'o' && 'hello'.charAt(5) == ''
        'hello mellow'.indexOf('ello', 2) == 7 && 'hello mellow'.indexOf('jello') == -1
        'hello mellow'.lastIndexOf('ello', 6) == 1
        ['hello', 'mellow'].join(' ') == 'hello mellow'
        'TacoCÆt Xii'.lowerAscii() == 'tacocÆt xii'
        'hello hello'.replace('he', 'we', 1) == 'wello hello'
        'hello hello hello'.split(' ', 2) == ['hello', 'hello hello']
        'tacocat'.substring(0, 4) == 'taco'
        '  \\ttrim\\n    '.trim() == 'trim'
        strings.quote('single-quote with "double quote"') == '"single-quote with \\\\"double quote\\\\""'
        'this is a string: %s\\nand an integer: %d'.format(['str', 42]) == 'this is a string: str\\nand an integer: 42'
        '%s'.format([64.2]) == '64.2' && '%x'.format([26]) == '1a' && '%o'.format([30]) == '36'
    """,
    "sets": """
        sets.contains([], []) && !(sets.contains([], [1])) && sets.contains([1, 2, 3, 4], [2, 3])
        sets.equivalent([1], [1, 1]) && sets.equivalent([1, 2, 3], [3, 2, 1])
        sets.intersects([1], [1, 2]) && !(sets.intersects([1], []))
    """,
    "two variables": """
        [1, 2, 3].all(i, j, i < j)
        !({'hello': 'world', 'taco': 'taco'}.all(k, v, k != v))
        [1, 1, 2, 2, 3, 3].existsOne(i, v, i == 2 && v == 2)
        [1, 2, 3].transformList(i, v, (i * v) + v) == [1, 4, 9]
        [1, 2, 3].transformMap(i, v, (i * v) + v) == {0: 1, 1: 4, 2: 9}
        {'greeting': 'hello'}.transformMapEntry(k, v, {v: k}) == {'hello': 'greeting'}
    """,
    "optionals": """
        optional.of(b'hello').value() == b'hello' && !(optional.ofNonZeroValue({}).hasValue())
        optional.ofNonZeroValue(0) == optional.none()
        {'a': {'b': 1}}.?a.?b.orValue(0) == {'a': {'b': 1}}.?a.b.orValue(0)
        {'k': 'v'}[?'m'].orValue('none') == 'none'
        {'e': [1, 2]}.?e.optMap(e, e.size()).orValue(0) == 2
        [1, ?optional.none(), ?optional.of(2)] == [1, 2]
        {?'a': optional.none(), ?'b': optional.of(1)} == {'b': 1}
    """,
    "bindings": """
        cel.bind(a, 'hello', cel.bind(b, 'world', a + b + b + a)) == 'helloworldworldhello'
        cel.bind(valid, [1, 2, 3], [4, 5, 3].exists(e, e in valid))
    """,
}
EXAMPLES = [(line.strip(), group) for group, lines in TRUE.items() for line in lines.splitlines() if line.strip()]
ERRORS = [
    "[].min()",
    "quantity('200K')",
    "quantity('9999999999999999999999999999999999999G').asInteger()",
    "semver('Three')",
    "ip('127.0.0.256')",
    "cidr('192.168.0.0/33')",
    "url('https://a:b:c/')",
    "'hello'.charAt(-1)",
    "'tacocat'.substring(2, 1)",
    "optional.ofNonZeroValue({}).value()",
    "[1, 2].flatten(-1)",
    "{'greeting': 'aloha', 'farewell': 'aloha'}.transformMapEntry(k, v, {v: k})",
]


@pytest.mark.parametrize(
    "example", [line for line, _ in EXAMPLES], ids=[f"{group}: {line}" for line, group in EXAMPLES]
)
def test_documented_results(example: str) -> None:
    assert value(example) is True


@pytest.mark.parametrize("example", ERRORS)
def test_documented_errors(example: str) -> None:
    with pytest.raises(CelError):
        value(example)


TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PRINTED = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
TABLE = re.findall(r"^\|.*\| `(\w+)` \|([^|]+)\|([^|]+)\|([^|]+)\|$", TEXT, re.MULTILINE)
PURPOSES = (budget.SELECTOR_LIMITS, budget.POLICY_LIMITS, budget.MATCH_CONDITION_LIMITS)


def test_the_examples_print_what_the_page_says() -> None:
    """Each goes on where the one before it ends."""
    names: dict[str, object] = {}
    for code, expected in PRINTED:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # noqa: S102 - the page's own code
        assert printed.getvalue() == expected
    assert len(PRINTED) == 2


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(budget.Limits)])
def test_the_table_has_the_limits(field: str) -> None:
    [cells] = [cells for name, *cells in TABLE if name == field]
    assert [float(cell.replace(",", "")) for cell in cells] == [getattr(each, field) for each in PURPOSES]
