"""save_pretrained raises NotImplementedError for a model that from_pretrained loaded from a save in 8 bits."""

import sys
from tempfile import TemporaryDirectory

from transformers import BertConfig, BertModel, BitsAndBytesConfig

config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
eight_bits = BitsAndBytesConfig(load_in_8bit=True)
seen = "a save"
with TemporaryDirectory() as whole, TemporaryDirectory() as first, TemporaryDirectory() as second:
    BertModel(config).save_pretrained(whole)
    BertModel.from_pretrained(whole, quantization_config=eight_bits).save_pretrained(first)
    loaded = BertModel.from_pretrained(first)
    try:
        loaded.save_pretrained(second)
    except NotImplementedError as error:
        seen = repr(error)

print("expected: a save")
print(f"seen: {seen}")
sys.exit(0 if seen == "a save" else 1)
