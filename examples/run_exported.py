"""Runs an exported policy in its Gymnasium environment, one whose observations are arrays: without lockstep, without PyTorch.

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
total, over = 0.0, False
while not over:
    given = {"observation": np.asarray(observation)[np.newaxis], **state}
    found = dict(zip(names, policy.run(None, given), strict=True))
    state = {"state": found["next_state"]} if state else {}
    observation, reward, terminated, truncated, info = env.step(found["action"][0])
    total, over = total + float(reward), terminated or truncated
print(f"return {total:.5g}")
# [end]
