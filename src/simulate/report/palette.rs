//! Which colour belongs to whom. Each policy has the same one in every report; the colours themselves are in `style.css`
//! (after Okabe and Ito, told apart also by people who do not see all colours), for light and dark pages.

use super::super::contender::ALL_POLICIES;

/// The class of a policy's lines.
pub(super) fn class(policy: &str) -> String {
    let place = ALL_POLICIES.iter().position(|name| *name == policy).unwrap_or(ALL_POLICIES.len());
    format!("c{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_a_colour_on_light_and_on_dark_pages() {
        let style = include_str!("style.css");
        for name in ALL_POLICIES.into_iter().chain(["another"]) {
            let rule = format!(".{} {{ --c: light-dark(", class(name));
            assert_eq!(style.matches(&rule).count(), 1, "{rule}");
        }
    }
}
