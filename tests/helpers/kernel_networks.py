"""Small networks of the families that kernels are made for, at sizes that fill no block."""

from pathlib import Path

import onnx
import onnx_ir as ir

from coexec.research import zoo
from coexec.research.zoo.network_file import NetworkFile
from tests.helpers import fused_blocks
from tests.helpers.model_text import parse_text

_TABLES = {  # see `network_file`
    "depthwise": """\
block inverted x: wide stride  # MobileNet v2
  expand conv $wide 1
  expand/relu6 relu6
  depthwise depthwise 3 stride=$stride
  depthwise/relu6 relu6
block shortcut x: wide channels
  inverted inverted $wide 1
  project conv $channels 1
  add add < project x
input 1 3 33 27
stem conv_relu 10 3 stride=2 pad=1
down inverted 20 2
project conv 18 1
shortcut shortcut 30 18
pool global_average_pool
flatten flatten
gemm gemm 13
output y
""",
    "residual": """\
block basic x:  # ResNet
  conv1 conv_relu 18 3 pad=1
  conv2 conv 18 3 pad=1
  add add < conv2 x
  relu relu
input 1 3 41 37
stem conv_relu 18 7 stride=2 pad=3
pool max_pool 3 stride=2 pad=1
basic1 basic
basic2 basic
wider conv_relu 33 1 stride=2
mean global_average_pool
flatten flatten
gemm gemm 21
output y
""",
    "inception": """\
block module x:
  one conv_relu 10 1
  three/less conv_relu 6 1 < x
  three conv_relu 18 3 pad=1
  row conv_relu 9 1x7 pad=0x3 < x
  column conv_relu 12 7x1 pad=3x0
  pool average_pool 3 stride=1 pad=1 < x
  pooled conv_relu 7 1
  joined concat < one three column pooled
input 1 3 21 25
stem conv_relu 14 3 stride=2
module1 module
pool max_pool 3 stride=2 ceil=1
module2 module
output y
""",
    "dense": """\
block layer x:  # DenseNet
  norm batch_norm
  relu relu
  less conv 22 1
  less/relu relu
  more conv 6 3 pad=1
  joined concat < x more
input 1 3 24 19
stem conv 14 5 stride=2 pad=2
layer1 layer
layer2 layer
layer3 layer
halved conv 16 1
pool average_pool 2 stride=2
layer4 layer
output y
""",
    "gates": """\
input 1 3 32 26  # MobileNet v3
stem/conv conv 10 3 stride=2 pad=1
stem/hswish hswish
down gated hswish 5 36 18 10 2 1
same gated_residual relu 3 42 18 10 1 1
dilated plain_residual hswish 5 30 18 1 2
pool global_average_pool
flatten flatten
gemm gemm 17
gemm/hswish hswish
output y
""",
    "groups": """\
block next x: group stride  # ResNeXt
  less conv_relu 24 1
  grouped conv 24 3 group=$group stride=$stride pad=1
  relu relu
  more conv 20 1
input 1 3 26 22
stem conv_relu 20 3 stride=2 pad=1
next1 next 4 1
add add < next1 stem
next2 next 3 2
output y
""",
    "winograd": """\
input 1 3 30 34  # VGG
conv1 conv_relu 34 3 pad=1
conv2 conv_relu 40 3 pad=1
pool max_pool 2 stride=2
conv3 conv_relu 36 3 pad=1
conv4 conv_relu 44 3 pad=1
output y
""",
    "segmentation": """\
input 1 3 20 28
down conv_norm 12 3 stride=2
down/relu relu
near conv 14 3 pad=1
far conv 14 3 pad=4 dilation=4 < down/relu
mean global_average_pool < down/relu
mean/conv conv 6 1
mean/resize resize < mean/conv down/relu
joined concat < near far mean/resize
up doubled 10
nearest resize mode=nearest < near up
both concat < up nearest
classes conv 5 1
bigger resize < classes x
tanh tanh
output y
""",
}

_TEXTS = {  # see `model_text`
    "shuffle": """\
model shuffle opset 17 (x: 1x12x10x9)
  w1 = tensor(24x4x1x1)
  w2 = tensor(24x1x3x3)
  w3 = tensor(12x12x1x1)
  apart = tensor(5 int64, [1, 3, 8, 10, 9])
  other = tensor(5 int64, [1, 8, 3, 10, 9])
  together = tensor(4 int64, [1, 24, 10, 9])
  a: 1x24x10x9 = Conv(x, w1) group=3
  b: 1x24x10x9 = Relu(a)
  c: 1x3x8x10x9 = Reshape(b, apart)
  d: 1x8x3x10x9 = Transpose(c) perm=[0, 2, 1, 3, 4]
  e: 1x24x10x9 = Reshape(d, together)
  f: 1x24x10x9 = Conv(e, w2) group=24 pads=[1, 1, 1, 1]
  g: 1x12x10x9, h: 1x12x10x9 = Split(f) axis=1
  i: 1x12x10x9 = Conv(h, w3)
  j: 1x24x10x9 = Concat(g, i) axis=1
  k: 1x8x3x10x9 = Reshape(j, other)
  l: 1x3x8x10x9 = Transpose(k) perm=[0, 2, 1, 3, 4]
  y: 1x24x10x9 = Reshape(l, together)
return y
""",
    "integers": """\
model integers opset 17 (x: 2x37)
  hundred = tensor(scalar, 100.0)
  a: 2x37 = Mul(x, hundred)
  b: 2x37 = Sin(a)
  c: 2x37 = Mul(b, hundred)
  d: 2x37 int8 = Cast(c) to=3
  e: 2x37 int8 = Neg(d)
  f: 37x2 int8 = Transpose(e)
  y: 37x2 = Cast(f) to=1
return y
""",
}

_TRANSFORMER = "transformer"

NAMES = (*_TABLES, *_TEXTS, _TRANSFORMER)


def kernel_network(name: str) -> onnx.ModelProto:
    """The network of that name, one of `NAMES`."""
    if name == _TRANSFORMER:
        return fused_blocks.network(("attention", "skip", "gelu", "layer_norm"), fused_blocks.WORDS)
    if name in _TEXTS:
        return parse_text(_TEXTS[name]).proto
    blocks = Path(zoo.__file__).with_name("blocks.txt").read_text()
    return ir.to_proto(NetworkFile(name, blocks, _TABLES[name]).build())
