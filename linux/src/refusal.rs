//! The report of an error: the fields of its [`Fault`], else the chain of causes as a sentence.

use image::fault::Fault;
use image::report::Report;

/// The report of an error in a step: the fault's fields if the chain holds one, else the chain as a sentence.
pub fn report(step: &str, error: &anyhow::Error) -> Report {
    let fault = error.downcast_ref::<Fault>().or_else(|| {
        error
            .chain()
            .find_map(|cause| cause.downcast_ref::<Fault>())
    });
    match fault {
        Some(fault) => Report {
            step: step.to_owned(),
            what: fault.what.clone(),
            expected: fault.expected.clone(),
            found: fault.found.clone().or_else(|| cause(error)),
            fix: fault.fix.clone(),
        },
        None => Report {
            step: step.to_owned(),
            what: format!("{error:#}"),
            expected: None,
            found: None,
            fix: None,
        },
    }
}

/// The cause of a fault that is the context of another error.
fn cause(error: &anyhow::Error) -> Option<String> {
    let last = error.chain().last()?;
    (error.chain().count() > 1 && last.downcast_ref::<Fault>().is_none()).then(|| last.to_string())
}
