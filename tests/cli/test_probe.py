"""`kvspec probe`: what it says of servers that are right, half-written, wrong and silent."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from kvcheck.cli import main
from tests.remote.servers import SERVE, script, serve


def probed(name: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    code = main(["probe", name, *more])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("framing", ["", "+json", "+cbor"])
def test_the_reference_answers_everything_right(
    framing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = probed(serve("kvref", options=framing), capsys)
    assert code == 0
    assert "features: admission, cache_salt" in said
    assert said.splitlines()[-1].startswith("23 of 23 replies are right; next: kvspec check")


HALF = """
for line in sys.stdin:
    message = json.loads(line)
    if message["op"] in RIGHT:
        answer(message, RIGHT[message["op"]])
    else:
        fields = {"reason": "unknown_op"}
        error = {"class": "ProtocolError", "message": "unknown op", "fields": fields}
        write({"id": message["id"], "error": error})
"""


def test_a_half_written_server_is_asked_to_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = probed(script(tmp_path, HALF), capsys, "--json", "-")
    found = {(each["message"]["id"], each["message"]["op"]): each for each in json.loads(said)}
    assert code == 1
    assert found[0, "hello"]["verdict"] == "right"
    made = found[1, "create_manager"]
    assert made["verdict"] == "wrong"
    assert made["detail"].startswith("first at .none_hash: expected 4e11")
    assert {each["verdict"] for (_, op), each in found.items() if op == "allocate_slots"} == {
        "refused"
    }
    assert [op for _, op in found][-1] == "drop"


@pytest.mark.parametrize(
    ("code", "verdict", "detail"),
    [
        ("sys.exit(3)", "silent", "ended with exit status 3"),
        ("until('get_usage'); print('hm', file=sys.stderr); sys.exit(4)", "silent", "hm"),
        ("m = until('get_usage'); answer(m, {'usage': 0.5}); read()", "malformed", "num_free"),
        ("m = until('get_usage'); write({'id': 7, 'result': 1}); read()", "malformed", "7, not 2"),
        (
            "m = until('get_usage'); answer(m, {'num_free_blocks': 8, 'usage': 0.0}); read()",
            "wrong",
            "first at .num_free_blocks: expected 7, got 8",
        ),
    ],
)
def test_the_first_wrong_answer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, verdict: str, detail: str
) -> None:
    status, said = probed(script(tmp_path, code), capsys, "--json", "-")
    wrong = [each for each in json.loads(said) if each["message"]["op"] in ("hello", "get_usage")]
    assert status == 1
    assert any(each["verdict"] == verdict and detail in each["detail"] for each in wrong)


def test_hashes_are_compared_where_a_hash_function_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = []
    for names in (["sha256_cbor"], []):
        offered = f"RIGHT['hello']['hash_functions'] = {names}\n"
        _, said = probed(script(tmp_path, offered + HALF), capsys, "--json", "-")
        made = next(each for each in json.loads(said) if each["message"]["op"] == "create_manager")
        verdicts.append(made["verdict"])
    assert verdicts == ["wrong", "right"]


def test_other_block_ids_are_told_and_are_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = """
        from kvref import implementation
        from kvref.block_pool import BlockPool
        from kvcheck.remote.server import serve_stdio
        BlockPool.allocate = lambda pool, n, f=BlockPool.allocate: f(pool, n)[::-1]
        serve_stdio(implementation)
        """
    lines = "\n".join(line.strip() for line in code.splitlines())
    status, said = probed(script(tmp_path, lines), capsys)
    assert status == 0
    assert "right; the block ids differ, which only level identity compares" in said


def test_a_server_of_json_lines_is_probed_and_checked_under_one_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = f"""
serves = subprocess.Popen({(*SERVE, "kvref")}, stdin=-1, stdout=-1, text=True)
for line in sys.stdin:
    message = json.loads(line)  # this is no server of CBOR
    serves.stdin.write(line)
    serves.stdin.flush()
    answer = json.loads(serves.stdout.readline())
    if message["op"] == "hello":
        answer["result"]["features"] = ["prefix_caching"]
    write(answer)
"""
    name = script(tmp_path, code).replace("+json", "")
    status, said = probed(name, capsys)
    assert status == 0
    command = shlex.split(said.splitlines()[-1].partition("next: kvspec ")[2])
    assert command == ["check", name]
    assert main([*command, "--rules", "KV-POOL-5", "--budget", "directed"]) == 0
    assert "conforms at level behaviour" in capsys.readouterr().out


def test_a_double_may_be_written_as_an_int(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for usage, verdict in (("0", "right"), ("false", "malformed"), ("1", "wrong")):
        code = (
            f"answer(until('get_usage'), {{'num_free_blocks': 7, 'usage': json.loads('{usage}')}})"
        )
        _, said = probed(script(tmp_path, code + "\nread()"), capsys, "--json", "-")
        (asked,) = (each for each in json.loads(said) if each["message"]["op"] == "get_usage")
        assert asked["verdict"] == verdict
