"""A program that reads pages with rapidocr, which uses ONNX Runtime or another module instead.

    python benchmarks/read_pages.py MODULE HOW PAGES RESULT

HOW is "as it is", "patched" (the class is replaced before rapidocr is imported), or a folder with a
copy of rapidocr that imports MODULE. PAGES is a folder of .png files, which are read in order. The
texts and boxes are pickled to RESULT. Prints JSON: seconds of the imports, of the creation, and of
each page.
"""

import importlib
import json
import pickle
import sys
import time
from pathlib import Path

import cv2


def main():
    module, how, folder, result = sys.argv[1:]
    pages = [cv2.imread(str(path)) for path in sorted(Path(folder).glob("*.png"))]
    start_s = time.perf_counter()
    if how == "patched":
        runtime = importlib.import_module("onnxruntime")
        runtime.InferenceSession = importlib.import_module(module).InferenceSession
    elif how != "as it is":
        sys.path.insert(0, how)
    rapidocr = importlib.import_module("rapidocr_onnxruntime")
    imported_s = time.perf_counter()
    reader = rapidocr.RapidOCR()
    created_s = time.perf_counter()
    texts, pages_s = [], []
    for page in pages:
        before_s = time.perf_counter()
        lines, _ = reader(page)
        pages_s.append(time.perf_counter() - before_s)
        texts.append([(text, box) for box, text, _ in lines or ()])
    Path(result).write_bytes(pickle.dumps(texts))
    print(
        json.dumps(
            {
                "import_s": imported_s - start_s,
                "creation_s": created_s - imported_s,
                "pages_s": pages_s,
            }
        )
    )


if __name__ == "__main__":
    main()
