"""Write the pages."""

from tools.reference import PAGES, make_pages

for _name, _text in make_pages().items():
    (PAGES / _name).write_text(_text, encoding="utf-8")
