//! Large objects of a bucket, which are sent in parts.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use data_encoding::HEXLOWER;
use fetch::{Bucket, Content, Failure, Parts, Patience, Stop, blocking};
use sha2::{Digest as _, Sha256};

use super::Bench;
use super::s3::Fault;

/// S3 takes no smaller ones.
const PART: u64 = 5 << 20;
pub(crate) const OBJECT: &str = "large";

/// An object of three parts, the last of which is short.
pub(crate) fn content() -> Vec<u8> {
    let mut random = 1_u32;
    let bytes = std::iter::repeat_with(|| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random.to_le_bytes()[3]
    });
    bytes.take(2 * (5 << 20) + 12_345).collect()
}

pub(crate) fn large_objects_go_in_parts(bench: &Bench) -> Result<()> {
    let folder = bench.folder()?;
    let file = folder.path().join("file");
    let bytes = content();
    fs::write(&file, &bytes)?;
    let sum = HEXLOWER.encode(&Sha256::digest(&bytes));
    let from_file = Content::File(&file, bytes.len() as u64);
    for (at, (fault, content, ends)) in [
        (None, from_file, Ok(())),
        (None, Content::Bytes(&bytes), Ok(())),
        (Some(Fault::Part), from_file, Ok(())),
        (Some(Fault::Completing), from_file, Ok(())),
        (Some(Fault::Lost), from_file, Ok(())),
        (Some(Fault::Parts), from_file, Err("500")),
        (
            Some(Fault::Silent),
            from_file,
            Err("given up after 2 attempts"),
        ),
        (Some(Fault::Completed), from_file, Err("InvalidPart")),
    ]
    .into_iter()
    .enumerate()
    {
        bench.s3.fail(fault);
        bench.s3.asked();
        let url = format!("s3://bucket/parts/{at}");
        let done = put(&bench.options(), &url, &sum, content, Stop::default());
        bench.s3.fail(None);
        let object = bench.s3.object(&format!("/bucket/parts/{at}/{OBJECT}"));
        match (&done, ends) {
            (Ok(()), Ok(())) => ensure!(
                object.as_ref() == Some(&bytes),
                "{fault:?}: another content"
            ),
            (Err(failure), Err(words)) => {
                ensure!(failure.to_string().contains(words), "{fault:?}: {failure}");
                ensure!(object.is_none(), "{fault:?}: the object is there");
            }
            _ => anyhow::bail!("{fault:?}: {done:?}, expected {ends:?}"),
        }
        let asked = bench.s3.asked();
        ensure!(
            bench.s3.uploads() == 0,
            "{fault:?}: parts are left: {asked:?}"
        );
        let sent = asked
            .iter()
            .filter(|asked| asked.contains("partNumber="))
            .count();
        let expected = match fault {
            Some(Fault::Part) => 6,
            Some(Fault::Parts) => 3,
            Some(Fault::Silent) => 2,
            _ => 3,
        };
        ensure!(sent == expected, "{fault:?}: {asked:?}");
    }
    // Another hash is found before the object is there.
    let other = HEXLOWER.encode(&Sha256::digest("other"));
    let failure = put(
        &bench.options(),
        "s3://bucket/parts/other",
        &other,
        from_file,
        Stop::default(),
    );
    ensure!(
        matches!(failure, Err(Failure::Digest { .. })),
        "{failure:?}"
    );
    ensure!(bench.s3.object("/bucket/parts/other/large").is_none());
    interrupted(bench, &sum, from_file)?;
    ensure!(bench.s3.uploads() == 0);
    let refused = bench.s3.refused();
    // The attempt to complete whose first answer was lost.
    let unexpected = refused
        .iter()
        .filter(|refused| !refused.contains("NoSuchUpload"));
    ensure!(unexpected.count() == 0, "{refused:?}");
    Ok(())
}

/// An upload that the user ends between two attempts of a part.
fn interrupted(bench: &Bench, sum: &str, content: Content<'_>) -> Result<()> {
    bench.s3.fail(Some(Fault::Part));
    bench.s3.asked();
    let flag = Arc::new(AtomicBool::new(false));
    let (server, asked) = (bench.s3.clone(), Arc::clone(&flag));
    let stop = Stop::when(move || {
        if server.uploads() > 0 {
            asked.store(true, Ordering::SeqCst);
        }
        asked.load(Ordering::SeqCst)
    });
    let options = bench.options();
    let ended = put(
        &options,
        "s3://bucket/parts/interrupted",
        sum,
        content,
        stop,
    );
    bench.s3.fail(None);
    let text = format!("{ended:?}");
    ensure!(
        ended.is_err_and(|failure| failure.to_string().contains("interrupted")),
        "{text}"
    );
    let asked = bench.s3.asked();
    ensure!(
        asked.last().is_some_and(|last| last.starts_with("DELETE ")),
        "{asked:?}"
    );
    Ok(())
}

pub(crate) fn put(
    options: &fetch::Options,
    url: &str,
    sum: &str,
    content: Content<'_>,
    stop: Stop,
) -> Result<(), Failure> {
    let patience = Patience {
        attempts: Some(2),
        // Longer than the time after which an upload is asked whether it is to end.
        first_wait: Duration::from_millis(400),
        ..Patience::default()
    };
    let parts = Parts {
        above: PART,
        size: PART,
    };
    let bucket = Bucket::parse(url).unwrap();
    let bucket = bucket
        .with_patience(patience)
        .with_parts(parts)
        .with_stop(stop);
    let client = blocking::Client::new(options).unwrap();
    client.run(async |client| bucket.put(client, OBJECT, sum, content).await)
}
