"""Rules in Cedar: checked where they are written and where they are loaded, evaluated inside the deciding transaction.

* `text.py` divides a rule set into its policies and says where in it something stands; it knows no engine.
* `sight.py` reads from parsed policies what of a question they can see at all.
* `check.py` says whether a text is a rule set, in sentences for who wrote it.
* `evaluate.py` puts one question to the engine; `engine.py` does so for the core, and keeps answers.

House rule: nothing here imports the engine when it is imported itself, only when there is something to ask it. So a
gateway without rules needs no engine, and one that needs it and lacks it can say so.
Source: docs/protocol.md 39.
"""
