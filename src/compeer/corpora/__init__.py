"""Corpora: a reader for each format, and the sample corpus written for this project."""

from compeer.corpora.corpus import FORMATS, corpus_path, read_corpus, sample_path, write_jsonlines
from compeer.corpora.items import BadDialogues
from compeer.corpora.labels import PROBLEMS

__all__ = ["FORMATS", "PROBLEMS", "BadDialogues", "corpus_path", "read_corpus", "sample_path", "write_jsonlines"]
