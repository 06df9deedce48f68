"""Sockets that are removed are made again, and so is the registration of a kubelet that lost the driver."""

from pathlib import Path

import grpc

from kubeletplugin.kubelet import SocketKeeper, UnixServer, registration
from kubeletplugin.pb import registration_v1_pb2
from kubeletplugin.publish.offer import KubeletGate
from tests.kubeletplugin.fakes import FakeClock


async def answers(path: Path) -> str:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        ask = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            request_serializer=registration_v1_pb2.InfoRequest.SerializeToString,
            response_deserializer=registration_v1_pb2.PluginInfo.FromString,
        )
        answer = await ask(registration_v1_pb2.InfoRequest(), timeout=10)
    name: str = answer.name
    return name


async def test_sockets_are_made_again_where_they_were_removed(tmp_path: Path) -> None:
    clock = FakeClock()
    gate = KubeletGate(clock, 30.0)
    handler = registration(tmp_path / "dra.sock", lambda accepted: gate.answered(accepted=accepted))
    plugin, registering = (UnixServer(tmp_path / name, [handler]) for name in ("p/dra.sock", "r/x-reg.sock"))
    await plugin.start()
    await registering.start()
    keeper = SocketKeeper(plugin, registering, gate, clock)
    gate.answered(accepted=True)
    try:
        before = registering.path.stat().st_ino
        await keeper.look()
        assert (registering.path.stat().st_ino, gate.lost) == (before, ""), "nothing to do"

        plugin.path.unlink()
        await keeper.look()
        assert (await answers(plugin.path), gate.lost) == ("neuron.aws.com", "")

        registering.path.unlink()
        registering.path.parent.rmdir()
        await keeper.look()
        assert gate.lost == f"its registration socket {registering.path} was removed"
        assert await answers(registering.path) == "neuron.aws.com"

        made = registering.path.stat().st_ino
        await keeper.look()
        assert registering.path.stat().st_ino == made, "the kubelet has a while to answer"
        clock.time += 60
        await keeper.look()
        assert registering.path.stat().st_ino != made, "and is told again"
        gate.answered(accepted=True)
        made = registering.path.stat().st_ino
        clock.time += 600
        await keeper.look()
        assert registering.path.stat().st_ino == made
        assert await answers(registering.path) == "neuron.aws.com"
    finally:
        await registering.stop(0)
        await plugin.stop(0)
    assert not registering.path.exists()


async def test_a_socket_that_cannot_be_made_is_logged_and_the_old_one_serves(tmp_path: Path, caplog: object) -> None:
    clock = FakeClock()
    server = UnixServer(tmp_path / "r/x-reg.sock", [registration(tmp_path, lambda _: None)])
    await server.start()
    other = UnixServer(tmp_path / "p/dra.sock", [])
    await other.start()
    keeper = SocketKeeper(other, server, KubeletGate(clock, 30.0), clock)
    server.path.unlink()
    server.path.parent.rmdir()
    server.path.parent.write_text("a file in the place of the folder")
    try:
        await keeper.look()
        assert not server.in_place
        server.path.parent.unlink()
        await keeper.look()
        assert server.in_place
    finally:
        await server.stop(0)
        await other.stop(0)
