//! Raw request bodies: what the real `measure` makes of them, in both modes.

use serde_json::Value;
use tidegate::balance::{Bucket, Buckets, Policy, RedirectTuning};
use tidegate::prompt::measure;

use crate::deviations::{Instead, Replays};
use crate::vectors::{compare, float, raised, text, unsigned};

pub(crate) struct Replay;

impl Replays for Replay {
    fn name(&self, case: &Value) -> String {
        text(&case["name"]).to_owned()
    }

    fn replay(&self, case: &Value) -> Result<(), String> {
        let demand = measure(text(&case["body"]).as_bytes());
        compare("bytes", demand.body_bytes, unsigned(&case["bytes"]))?;
        for (mode, policy) in [("plain", Policy::ReferencePlain), ("dynamic", bucket_policy())] {
            if let Some(exception) = raised(&case[mode]) {
                return Err(format!("{mode}: the example raises {exception}"));
            }
            let score = policy.load_of(&demand).tokens();
            compare(mode, score, float(&case[mode]["score"]))?;
        }
        Ok(())
    }

    fn check_instead(&self, case: &Value, instead: Instead) {
        let Instead::Budget(millitokens) = instead else { panic!("a body cannot be held against {instead:?}") };
        let demand = measure(text(&case["body"]).as_bytes());
        assert_eq!(demand.body_bytes, unsigned(&case["bytes"]), "{}", case["name"]);
        let expects_eos_ignored = text(&case["body"]).contains("\"ignore_eos\":true");
        let measured = (demand.max_tokens.millitokens(), demand.ignore_eos);
        assert_eq!(measured, (millitokens, expects_eos_ignored), "{}", case["name"]);
        // The prompt's weight does not depend on the budget, whatever the body is.
        let tokens = bucket_policy().load_of(&demand).tokens();
        assert_eq!(tokens, demand.body_bytes as f64 / 4.0, "{}", case["name"]);
        if raised(&case["dynamic"]).is_none() {
            assert_eq!(tokens, float(&case["dynamic"]["score"]), "{}", case["name"]);
        }
    }
}

fn bucket_policy() -> Policy {
    let ranges = vec![Bucket { from: 0, to: 32_768 }, Bucket { from: 32_768, to: 131_072 }];
    Policy::ReferenceBucket(Buckets::new(ranges, RedirectTuning::default()).unwrap())
}
