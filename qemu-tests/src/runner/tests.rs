//! The choice of promises, and the emulator's fault that is tried again.

use super::*;

fn parse(words: &str) -> Arguments {
    Arguments::parse(words.split_whitespace().map(str::to_owned))
}

#[test]
fn only_a_timer_lost_before_the_init_is_the_emulators() {
    let lost = format!("[ 1.0] {LOST_TIMER}1\n");
    let init = format!("[ 2.0] {INIT}root: vda2\n");
    assert!(lost_timer(&lost));
    assert!(lost_timer(&format!("{lost}{init}")));
    assert!(!lost_timer(&format!("{init}{lost}")));
    assert!(!lost_timer(&init));
}

#[test]
fn promises_are_chosen_as_libtest_chooses_tests() {
    assert!(parse("").selects("boot::one"));
    assert!(parse("--nocapture boot").selects("boot::one"));
    assert!(!parse("--exact boot").selects("boot::one"));
    assert!(!parse("--skip one").selects("boot::one"));
    assert!(parse("--ignored").ignored && parse("--include-ignored").all);
    assert!(parse("--test-threads 1").selects("boot::one"));
}
