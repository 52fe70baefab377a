"""Everything that the README shows is run here, as a reader would run it."""

import asyncio
import json
import os
import pty
import shutil
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import upcall
from examples import demo
from examples.licence_headers import checking, headers, model
from examples.licence_headers.planner import Planner
from examples.licence_headers.screen import Screen
from tests.blackbox.deployment import Deployment

ROOT = Path(__file__).parents[2]


async def run(
    *arguments: str, url: str, stdin: int = asyncio.subprocess.DEVNULL, **env: str
) -> tuple[int, str]:
    """Run a module of ours to its end: its exit code and all that it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments),
        cwd=ROOT,
        env={**os.environ, "UPCALL_NATS_URL": url, "AUTO": "", "UPCALL_DEMO_MODEL": "", **env},
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, output.decode()


async def test_quickstart(live: upcall.Upcall, deployment: Deployment) -> None:
    code, said = await run("examples.quickstart", url=deployment.nats_url)

    assert (code, said) == (0, "The API is mapped; v1: keep, because one client pins it.\n")


def test_the_readme_shows_the_quickstart_word_for_word() -> None:
    code = (ROOT / "examples" / "quickstart.py").read_text()

    assert f"```python\n{code}```" in (ROOT / "README.md").read_text()


async def test_demo_with_a_scripted_parent(live: upcall.Upcall, deployment: Deployment) -> None:
    code, said = await run("examples.demo", url=deployment.nats_url, AUTO="1")

    assert code == 0, said
    result = json.loads(said.splitlines()[-1])
    assert {name: result[name] for name in ("rounds", "answers", "reports")} == {
        "rounds": 2,
        "answers": 2,
        "reports": 2,
    }
    assert result["elapsed_ms"] > 0


async def test_demo_without_a_terminal_says_what_to_do(live: upcall.Upcall, deployment: Deployment) -> None:
    code, said = await run("examples.demo", url=deployment.nats_url)

    assert code == 2
    assert "make demo AUTO=1" in said


async def test_demo_with_a_person(live: upcall.Upcall, deployment: Deployment) -> None:
    """A number that is none of the choices, then one in words, then Enter for what the child recommends."""
    person, terminal = pty.openpty()
    try:
        os.write(person, b"7\nlet us take mit\n\n")
        code, said = await run("examples.demo", url=deployment.nats_url, stdin=terminal)
    finally:
        os.close(person)
        os.close(terminal)

    assert code == 0, said
    assert "goes on in the same run with: MIT" in said
    assert "goes on in the same run with: Keep it as it is" in said


async def test_demo_on_files_of_ones_own_leaves_them_alone(
    live: upcall.Upcall, deployment: Deployment, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    shutil.copytree(ROOT / "examples" / "licence_headers" / "sample", own)
    before = checking.snapshot(own)

    code, said = await run("examples.demo", "--dir", str(own), url=deployment.nats_url, AUTO="1")

    assert code == 0, said
    assert json.loads(said.splitlines()[-1])["answers"] == 1, "the second round knows what the first decided"
    assert checking.snapshot(own) == before


class TwoMinds:
    """Stands in for the models of both sides, with what a real one might say."""

    def __init__(self) -> None:
        self.child = FunctionModel(self.work)
        self.parent = FunctionModel(self.decide)

    def work(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Look, ask, write what was decided, and say so: one step for each message so far."""
        match len(messages):
            case 1:
                return _call("show_files", directories=["core"])
            case 3:
                options = ["MIT", "Apache-2.0"]
                return _call("ask_parent", question="Which licence?", why_blocked="Two.", options=options)
            case 5:
                (answer,) = messages[-1].parts
                assert "Answer: MIT it is" in str(getattr(answer, "content", ""))
                return _call("set_header", path="core/tide.ts", holder="Harbour Labs", licence="MIT")
            case _:
                return ModelResponse([TextPart("Done as decided.")])

    def decide(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Choose MIT, in the tool that structured output is."""
        (tool,) = info.output_tools
        verdict = {"selected_option": "MIT", "answer": "MIT it is", "rationale": "It asks little."}
        return ModelResponse([ToolCallPart(tool.name, verdict)])


def _call(name: str, **arguments: Any) -> ModelResponse:
    return ModelResponse([ToolCallPart(name, arguments)])


async def test_models_on_both_sides(live: upcall.Upcall, tmp_path: Path) -> None:
    minds = TwoMinds()
    job = demo.prepare(None, tmp_path)
    agent = f"clerk-{uuid4().hex}"
    runner = upcall.Runner(live)

    @runner.agent(agent)
    async def work(run: upcall.Run) -> str:
        return await model.let_model_work(run, job.root, minds.child)

    serving = asyncio.create_task(runner.run(handle_signals=False))
    session = await live.open_session(agent="planner")
    async with await session.start("headers") as run_:
        planner = Planner(run_, model.ModelDecider(minds.parent), Screen(), agent=agent)
        done = await planner.delegate("Bring core in line.", "core")
    runner.stop()
    await serving

    assert done.reports[0].answer == "Done as decided."
    assert [question.selected_option for question in done.answered] == ["MIT"]
    text = (job.root / "core" / "tide.ts").read_text()
    assert headers.read(text, ".ts").licence == "MIT"


@pytest.mark.parametrize("name", ["no-such-model", "anthropic:some-model"])
def test_a_model_that_is_not_there_says_what_to_do(name: str) -> None:
    with pytest.raises(demo.CannotBeginError, match=f"UPCALL_DEMO_MODEL is '{name}'"):
        demo.model_decider(name)
