from pathlib import Path

import pytest

from layered_llm.transport.addresses import AddressError, LinkAddresses, checked_address, ipc_path


@pytest.mark.parametrize("address", ["ipc:///" + "p" * 106, "ipc:///run/a", "inproc://a", "inproc://" + "n" * 300])
def test_ipc_and_inproc_are_offered(address: str) -> None:
    assert address == checked_address(address)


@pytest.mark.parametrize("address", ["", "ipc://", "inproc://", "tcp://127.0.0.1:5555", "/run/a", "ipc:/run/a"])
def test_nothing_else_is_offered(address: str) -> None:
    with pytest.raises(AddressError, match="neither"):
        checked_address(address)


@pytest.mark.parametrize("path", ["/" + "p" * 107, "/" + "é" * 54])
def test_path_that_fits_no_socket_is_refused_with_its_length(path: str) -> None:
    with pytest.raises(AddressError, match=f"has {len(path.encode())} bytes, at most 107"):
        checked_address(f"ipc://{path}")


def test_path_behind_an_address() -> None:
    assert Path("/run/a") == ipc_path("ipc:///run/a")
    assert ipc_path("inproc://a") is None


def all_of(addresses: LinkAddresses) -> list[str]:
    of_all = [addresses.supervisor_for_apis, addresses.supervisor, addresses.scheduler, addresses.runtime]
    return [*of_all, *map(addresses.text, range(3))]


@pytest.mark.parametrize(
    "addresses",
    [LinkAddresses.in_directory(Path("/run/engine"), generation=1), LinkAddresses.in_process("engine", generation=1)],
)
def test_addresses_of_a_generation_are_valid_and_differ(addresses: LinkAddresses) -> None:
    found = all_of(addresses)

    assert len(found) == len(set(found))
    assert found == [checked_address(address) for address in found]


def test_generations_share_only_the_address_for_apis() -> None:
    first = LinkAddresses.in_directory(Path("/run/engine"), generation=1)
    second = LinkAddresses.in_directory(Path("/run/engine"), generation=11)

    assert {first.supervisor_for_apis} == set(all_of(first)) & set(all_of(second))


def test_relative_directory_becomes_absolute() -> None:
    addresses = LinkAddresses.in_directory(Path("run"), generation=1)

    assert f"ipc://{Path.cwd()}/run/g1-scheduler" == addresses.scheduler


def test_directory_too_long_for_any_of_its_sockets_is_refused_at_once() -> None:
    longest = Path("/" + "d" * 92)
    assert 107 == len(str(ipc_path(LinkAddresses.in_directory(longest, generation=1).supervisor)))

    with pytest.raises(AddressError, match="shorter path"):
        LinkAddresses.in_directory(longest.with_name("d" * 93), generation=1)
