"""Load the policy of a run and compute actions: `act` for one environment, `predict` with the arguments of Stable-Baselines3.

python load_and_act.py RUN
"""

import sys

import gymnasium as gym

RUN = sys.argv[1]
env = gym.make("CartPole-v1")
observation, info = env.reset(seed=1)

# [essential]
import lockstep

policy = lockstep.load(RUN)
policy.begin()  # at the start of every episode: reset the memory
action = policy.act(observation, info)
action, state = policy.predict(observation)  # pass `state=state` next time
# [end]

env.step(action)
print(action)
