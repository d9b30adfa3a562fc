"""Reads code blocks of the project's documents, so that a test runs the lines that a reader
copies."""
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def blocks(document, language):
    """Returns the texts of all code blocks of `document` whose language is `language`, in order.
    `document` is a path below the checkout."""
    with open(os.path.join(ROOT, document)) as f:
        return re.findall(
            r"^```%s\n(.*?)^```$" % re.escape(language), f.read(), re.MULTILINE | re.DOTALL
        )


def block(document, language, words):
    """Returns the text of the only code block that contains `words`."""
    found = [b for b in blocks(document, language) if words in b]
    if len(found) != 1:
        raise AssertionError(
            "want one block of %s with %r in %s, got %d" % (language, words, document, len(found))
        )
    return found[0]
