"""questions.json holds what the pages say and obeys its published schema."""

import json

import jsonschema
import pytest

from scripts.catalog import load


@pytest.fixture
def export(site):
    return json.loads((site / "questions.json").read_text(encoding="utf-8"))


@pytest.fixture
def schema(site):
    text = (site / "questions.schema.json").read_text(encoding="utf-8")
    return json.loads(text)


def test_obeys_the_schema(export, schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(export, schema)


@pytest.mark.parametrize("field", ["slug", "short_answer", "checked"])
def test_the_schema_refuses_a_missing_field(export, schema, field):
    del export["questions"][0][field]
    with pytest.raises(jsonschema.ValidationError, match=f"'{field}' is a required"):
        jsonschema.validate(export, schema)


def test_the_schema_refuses_an_unknown_field(export, schema):
    export["questions"][0]["extra"] = 1
    with pytest.raises(jsonschema.ValidationError, match="extra"):
        jsonschema.validate(export, schema)


def test_every_answer_is_there_and_its_page_exists(site, export):
    answers = load().answers
    assert {q["slug"] for q in export["questions"]} == set(answers)
    for question in export["questions"]:
        assert (site / question["url"] / "index.html").exists()
        answer = answers[question["slug"]]
        assert question["question"] == answer.meta.question.model_dump()
        assert len(question["follow_ups"]) == len(answer.follow_ups)
        assert set(question["links"]) <= set(answers)


def test_texts_are_plain(export):
    for question in export["questions"]:
        texts = [*question["short_answer"].values(), *question["key_points"]]
        for text in texts:
            assert text and "](" not in text and "**" not in text
            assert "\n" not in text and "[@" not in text
