"""UnifiReward: one judge for the three steps and the response."""

from compeer.reward.conversation import Case, JudgeForm, record_case
from compeer.reward.judge import LocalJudge
from compeer.reward.judges import PairJudge, open_judge
from compeer.reward.metrics import collapsed_verdicts, judge_metrics
from compeer.reward.score import Judge, Judgment, Score, Unscored, score
from compeer.reward.train import RewardSettings, train_judge

__all__ = ["Case", "Judge", "JudgeForm", "Judgment", "LocalJudge", "PairJudge", "RewardSettings", "Score", "Unscored"]
__all__ += ["collapsed_verdicts", "judge_metrics", "open_judge", "record_case", "score", "train_judge"]
