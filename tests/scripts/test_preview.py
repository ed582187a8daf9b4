"""The picture that a link shows."""

from PIL import Image

from scripts import preview


def test_it_has_the_size_that_its_page_states():
    made = preview.picture("Why does PPO clip?", "Policy", "Book")
    with Image.open(made) as image:
        assert image.size == preview.SIZE == (1200, 630)
        assert len(image.getcolors()) > 4  # paper, bar and letters
    assert made.stat().st_size < 60_000


def test_another_question_has_another_picture():
    one, two = (preview.picture(q, "Policy", "Book") for q in ("First?", "Second?"))
    assert one != two
    assert one == preview.picture("First?", "Policy", "Book")


def test_the_longest_question_stays_above_the_foot():
    with Image.open(preview.picture("word " * 40, "Policy", "Book")) as image:
        band = image.convert("L").crop((20, 480, 1200, 505))
    assert band.getextrema()[0] > 200
