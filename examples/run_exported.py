"""Run an exported policy in its Gymnasium environment, without lockstep and PyTorch. The observations must be arrays.

lockstep export runs/first --out policy.onnx
python run_exported.py policy.onnx
"""

# [essential]
import sys

import gymnasium as gym
import numpy as np
import onnxruntime

policy = onnxruntime.InferenceSession(sys.argv[1])
env = gym.make(policy.get_modelmeta().custom_metadata_map["env_id"])
names = [output.name for output in policy.get_outputs()]
state = {i.name: np.zeros((1, i.shape[1]), np.float32) for i in policy.get_inputs() if i.name == "state"}

observation, info = env.reset(seed=1)
total, done = 0.0, False
while not done:
    inputs = {"observation": np.asarray(observation)[np.newaxis], **state}
    outputs = dict(zip(names, policy.run(None, inputs), strict=True))
    state = {"state": outputs["next_state"]} if state else {}
    observation, reward, terminated, truncated, info = env.step(outputs["action"][0])
    total, done = total + float(reward), terminated or truncated
print(f"return {total:.5g}")
# [end]
