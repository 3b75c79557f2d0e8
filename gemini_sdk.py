"""The older Gemini SDK without the warnings of its import; None where it is not installed, and then the newer one.

A module of its own so that the fork server can import it once for all workers (actor_pool.py): it takes seconds and
tens of MB, and 32 workers at once would need minutes for it.
"""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # two FutureWarnings
    try:
        import google.generativeai as generativeai
    except ImportError:
        generativeai = None
        try:
            from google import genai  # noqa: F401  (judge_clients.py imports it again, which takes no time then)
        except ImportError:
            pass
