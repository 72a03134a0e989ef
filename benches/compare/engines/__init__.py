"""kvring below vLLM and SGLang, beside their own: programs that run in .venv-engines."""
