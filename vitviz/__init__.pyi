"""The public names of vitviz and their modules, for type checkers and for `vitviz/__init__.py`."""

from vitviz.analysis.circuits import circuit as circuit
from vitviz.attribution.attention import attention as attention
from vitviz.attribution.attention import rollout as rollout
from vitviz.attribution.registry import METHODS as METHODS
from vitviz.attribution.registry import attribute as attribute
from vitviz.attribution.target_specs import Direction as Direction
from vitviz.attribution.target_specs import Group as Group
from vitviz.attribution.target_specs import Output as Output
from vitviz.attribution.target_specs import Similarity as Similarity
from vitviz.attribution.target_specs import Text as Text
from vitviz.attribution.target_specs import Unit as Unit
from vitviz.draw.overlay import overlay as overlay
from vitviz.errors import VitvizError as VitvizError
from vitviz.evaluation.arena import arena as arena
from vitviz.evaluation.audit import audit as audit
from vitviz.evaluation.faithfulness import faithfulness as faithfulness
from vitviz.explorer import Explorer as Explorer
from vitviz.heatmap import Heatmap as Heatmap
from vitviz.images.bands import Bands as Bands
from vitviz.images.limits import ImageError as ImageError
from vitviz.images.preprocess import Preprocess as Preprocess
from vitviz.language.captioner import load_captioner as load_captioner
from vitviz.language.words import Words as Words
from vitviz.language.words import words as words
from vitviz.model.config import ModelError as ModelError
from vitviz.model.config import ViTConfig as ViTConfig
from vitviz.model.config import preset as preset
from vitviz.model.devices import best_device as best_device
from vitviz.model.summary import summary as summary
from vitviz.model.trace import Trace as Trace
from vitviz.model.vit import Pretrained as Pretrained
from vitviz.model.vit import ViT as ViT
from vitviz.resources import example as example
from vitviz.training.api import train as train
from vitviz.view import View as View
from vitviz.weights.capture import capture as capture
from vitviz.weights.captured import Captured as Captured
from vitviz.weights.zoo import bundled as bundled
from vitviz.weights.zoo import load as load

__version__: str
