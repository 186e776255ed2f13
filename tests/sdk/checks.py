"""What a user of the OpenAI SDK sees through Tidegate. Started by `run`, with four addresses: Tidegate, its admin
listener, and the demo servers of the short and of the long group."""

import asyncio
import contextlib
import json
import sys
import time
import traceback
import urllib.request

import openai

TIDEGATE, ADMIN, SHORT, LONG = sys.argv[1:]
MODEL = "demo"
# Retries of the SDK would hide what Tidegate does.
SETTINGS = dict(base_url=f"{TIDEGATE}/v1", api_key="sk-demo", max_retries=0, timeout=60)
CLIENT = openai.OpenAI(**SETTINGS)
HELLO = [{"role": "user", "content": "twelve bytes"}]
# 35,000 tokens by Tidegate's measure: beyond the short group's 32,768.
LONG_PROMPT = "x" * 140_000
# More tokens than the demo servers' models take.
TOO_LONG_PROMPT = "x" * (4 * 131_072 + 4)


def get_json(url):
    with urllib.request.urlopen(url, timeout=10) as page:
        return json.load(page)


def in_flight():
    return sum(group["in_flight"] for group in get_json(f"{ADMIN}/status")["groups"])


def until(what, condition, seconds=5):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def until_idle():
    """All requests are over for Tidegate, and for the servers behind it."""
    until("nothing in flight", lambda: in_flight() == 0)
    for server in (SHORT, LONG):
        until(f"no load on {server}", lambda: get_json(f"{server}/load")["server_load"] == 0)


def answered_by(answer):
    return answer.system_fingerprint.removeprefix("tidegate-demo-")


def chat_whole():
    answer = CLIENT.chat.completions.create(model=MODEL, messages=HELLO)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content.startswith(f"{answered_by(answer)} answers: prompt of 3 tokens, "), answer
    assert choice.finish_reason == "stop"
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.total_tokens == 3 + answer.usage.completion_tokens


def chat_stream():
    chunks = list(CLIENT.chat.completions.create(model=MODEL, messages=HELLO, stream=True, max_tokens=5))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant" and deltas[0].content == "", deltas[0]
    assert len(chunks) == 1 + 5, chunks
    text = "".join(delta.content for delta in deltas)
    assert text == f"{answered_by(chunks[-1])} answers: prompt of 3 ", text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 5 + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1


def completions_whole():
    answer = CLIENT.completions.create(model=MODEL, prompt="twelve bytes")
    assert answer.object == "text_completion"
    assert answer.choices[0].text.startswith(f"{answered_by(answer)} answers: prompt of 3 tokens, "), answer
    assert answer.choices[0].finish_reason == "stop"


def completions_stream():
    chunks = list(CLIENT.completions.create(model=MODEL, prompt="twelve bytes", stream=True, max_tokens=4))
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text == f"{answered_by(chunks[-1])} answers: prompt of ", text
    assert chunks[-1].choices[0].finish_reason == "length"


def tokens_come_one_by_one():
    stream = CLIENT.completions.create(
        model=MODEL, prompt="x", stream=True, max_tokens=41, extra_body={"ignore_eos": True}
    )
    arrivals = [time.monotonic() for _ in stream]
    # The demo server makes a token every 30 ms, so the last comes 1.2 s after the first. Had anything on the way
    # collected them, they would come together.
    assert arrivals[-1] - arrivals[0] > 0.6, arrivals


def stream_with_usage():
    stream = CLIENT.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, max_tokens=5, stream_options={"include_usage": True}
    )
    *tokens, last = list(stream)
    assert all(chunk.usage is None for chunk in tokens)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (3, 5, 8)


def models_of_all_groups_are_listed_once():
    assert [model.id for model in CLIENT.models.list()] == [MODEL]


def embeddings_do_not_exist():
    error = raised(openai.NotFoundError, lambda: CLIENT.embeddings.create(model=MODEL, input="x"))
    assert error.status_code == 404
    assert error.response.json() == {"detail": "Not Found"}, error.response.text


def a_wrong_model_is_told_as_the_server_tells_it():
    error = raised(openai.NotFoundError, lambda: CLIENT.chat.completions.create(model="nope", messages=HELLO))
    assert error.status_code == 404
    assert error.body["param"] == "model", error.body
    assert error.body["message"] == "The model `nope` does not exist. Valid aliases: demo.", error.body


def a_prompt_that_is_too_long_is_told_as_the_server_tells_it():
    for stream in (False, True):
        error = raised(
            openai.BadRequestError,
            lambda: CLIENT.completions.create(model=MODEL, prompt=TOO_LONG_PROMPT, stream=stream),
        )
        assert error.status_code == 400
        assert error.body["param"] == "input_tokens", error.body
        assert "maximum context length is 131072 tokens" in error.body["message"], error.body


def short_and_long_prompts_go_to_their_groups():
    short = CLIENT.completions.create(model=MODEL, prompt="x", max_tokens=1)
    long = CLIENT.completions.create(model=MODEL, prompt=LONG_PROMPT, max_tokens=1)
    assert answered_by(short).startswith("short"), short
    assert answered_by(long).startswith("long"), long


def an_aborted_stream_frees_its_server():
    stream = CLIENT.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, max_tokens=50_000, extra_body={"ignore_eos": True}
    )
    for _ in range(3):
        next(stream)
    assert in_flight() == 1
    stream.close()
    until_idle()


def a_request_given_up_before_its_answer_frees_its_server():
    impatient = CLIENT.with_options(timeout=0.3)
    raised(openai.APITimeoutError, lambda: impatient.completions.create(model=MODEL, prompt="x" * 100_000))
    until_idle()


def the_id_of_the_request_reaches_the_server_and_comes_back():
    raw = CLIENT.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=1, extra_headers={"X-Request-Id": "sdk-42"}
    )
    assert raw.parse().id == "chatcmpl-sdk-42"
    assert raw.headers["x-request-id"] == "sdk-42", raw.headers


def twenty_chats_at_once():
    async def chat(client, number):
        content = f"number {number}"
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": content}], stream=number % 2 == 0, max_tokens=7
        )
        if number % 2:
            return stream.choices[0].message.content
        return "".join([chunk.choices[0].delta.content async for chunk in stream])

    async def all_chats():
        async with openai.AsyncOpenAI(**SETTINGS) as client:
            return await asyncio.gather(*(chat(client, number) for number in range(20)))

    answers = asyncio.run(all_chats())
    assert len(answers) == 20
    for number, answer in enumerate(answers):
        tokens = -(-len(f"number {number}") // 4)
        assert f" answers: prompt of {tokens} tokens," in answer, answer


def raised(kind, call):
    try:
        answer = call()
        if isinstance(answer, openai.Stream):
            answer = list(answer)
    except openai.OpenAIError as error:
        assert type(error) is kind, f"{kind.__name__} was expected, not {error!r}"
        return error
    raise AssertionError(f"{kind.__name__} was expected, not {answer}")


CHECKS = [
    chat_whole,
    chat_stream,
    completions_whole,
    completions_stream,
    tokens_come_one_by_one,
    stream_with_usage,
    models_of_all_groups_are_listed_once,
    embeddings_do_not_exist,
    a_wrong_model_is_told_as_the_server_tells_it,
    a_prompt_that_is_too_long_is_told_as_the_server_tells_it,
    short_and_long_prompts_go_to_their_groups,
    an_aborted_stream_frees_its_server,
    a_request_given_up_before_its_answer_frees_its_server,
    the_id_of_the_request_reaches_the_server_and_comes_back,
    twenty_chats_at_once,
]


def main():
    print(f"openai {openai.__version__}, Python {sys.version.split()[0]}", flush=True)
    failed = 0
    for check in CHECKS:
        began = time.monotonic()
        try:
            check()
            # Whatever a check did, it leaves nothing behind.
            until_idle()
            outcome = "ok"
        except Exception:
            failed += 1
            outcome = "FAILED"
            traceback.print_exc(file=sys.stdout)
        print(f"{outcome:6} {check.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
    with contextlib.suppress(OSError):
        CLIENT.close()
    print(f"{len(CHECKS) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
