"""What commands print, format by format: they hand over headings, tables, lists and findings.

`parts` has what they hand over; `text`, `html`, `markdown` and `sarif` know one format each. JSON is
`runtime.console.json_text` of plain data, with findings by `parts.finding_fields`.
"""
