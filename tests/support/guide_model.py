"""A tiny model that really gives guidance, so that a whole run can be tested without a real language model.

It is a tiny random model taught, in a few dozen steps, to answer every chat with one well-formed guidance block that
names a mechanism drawn from a few.  What it prefers is not taught, so a run's own training has something to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.tiny_model import build_tiny_model

OPEN, CLOSE = "<guidance>", "</guidance>"
MECHANISMS = ("Use exact cells.", "Use gap filling.", "Use skyline placement.", "Use flat rotation.")
CONTEXT_LENGTH = 8192
TEACHING_STEPS = 120


def build_guide_model(directory: Path, mechanisms: Sequence[str] = MECHANISMS) -> Path:
    """Write the model as a Hugging Face directory and return `directory`; takes a few seconds."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    build_tiny_model(directory, context_length=CONTEXT_LENGTH, words=(OPEN, CLOSE, *mechanisms), initializer_range=0.05)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    answers = [[*tokenizer.encode(f"{OPEN}{text}{CLOSE}"), tokenizer.eos_token_id] for text in mechanisms]
    cue = tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for step in range(TEACHING_STEPS):
            prompt = torch.randint(0, 256, (8, 64 + 8 * (step % 16)))
            rows = [[*prompt[i].tolist(), *cue, *answers[i % len(answers)]] for i in range(8)]
            tokens = torch.tensor(rows)
            labels = tokens.clone()
            labels[:, : -len(answers[0])] = -100
            optimizer.zero_grad()
            model(input_ids=tokens, labels=labels).loss.backward()
            optimizer.step()
    model.save_pretrained(directory)
    return directory
