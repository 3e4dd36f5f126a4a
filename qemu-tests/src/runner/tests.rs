//! The choice of promises, and the emulator's fault that is tried again.

use super::*;

fn parse(words: &str) -> Arguments {
    Arguments::parse(words.split_whitespace().map(str::to_owned))
}

#[test]
fn only_a_timer_lost_before_the_init_or_for_good_is_the_emulators() {
    let lost = format!("[ 1.0] {LOST_TIMER}1\n");
    let init = format!("[ 2.0] {INIT}root: vda2\n");
    assert!(lost_timer(&lost));
    assert!(lost_timer(&format!("{lost}{init}")));
    assert!(!lost_timer(&format!("{init}{lost}")));
    assert!(!lost_timer(&init));
    // Twice: the same processor has had no interrupt of its timer meanwhile, or it has, or it is another one.
    let stalls = |first: &str, second: &str| {
        format!("{init}[ 23.1] {LOST_TIMER}{first}\n[ 44.1] rcu\n[ 44.1] {LOST_TIMER}{second}\n")
    };
    assert!(lost_timer(&stalls(
        "1 timer-softirq=7",
        "1 timer-softirq=7"
    )));
    for second in ["1 timer-softirq=8", "0 timer-softirq=7"] {
        assert!(!lost_timer(&stalls("1 timer-softirq=7", second)));
    }
}

#[test]
fn an_assertion_of_qemus_translation_is_the_emulators_and_no_other_word_of_it() {
    let said = |text: &str| emulators_fault(&[], &[String::new(), text.to_owned()]);
    let assertion = "qemu-system-x86_64: system/physmem.c:2671: iotlb_to_section: Assertion `section_index < d->map.sections_nb' failed.";
    assert!(said(assertion).is_some());
    assert!(
        said("qemu-system-x86_64: Could not open 'disk.raw': No such file or directory").is_none()
    );
    assert!(
        said("qemu-system-x86_64: hw/core/qdev.c:1: realize: Assertion `bus' failed.").is_none()
    );
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
