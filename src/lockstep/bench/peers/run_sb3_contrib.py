"""RecurrentPPO of sb3-contrib on one of the compared workloads."""

import argparse

from run_stable_baselines3 import train, work_of
from sb3_contrib import RecurrentPPO

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=int)
    work = work_of(parser)
    train(RecurrentPPO, "MlpLstmPolicy", work, policy_kwargs={"lstm_hidden_size": work.memory})
