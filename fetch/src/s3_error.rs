//! Errors of S3: the code that says why a request is refused, in the content of the answer.
//!
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>

use std::time::Duration;

use reqwest::Response;
use tokio::time::timeout;

/// Bytes that are read for the code, which is the first element.
const LIMIT: usize = 8 << 10;
/// The time for them: a refusal counts without its code too.
const WAIT: Duration = Duration::from_secs(2);
/// Characters of the longest code that is shown.
const LONGEST: usize = 80;

/// What an answer other than success says, for a message; none if it does not say it as S3 does.
pub(crate) async fn note(answer: Response) -> Option<String> {
    let code = code(&beginning(answer).await)?;
    Some(format!("S3 says {code}"))
}

/// The first bytes of an answer's content, as far as they come in time.
async fn beginning(mut answer: Response) -> Vec<u8> {
    let mut content = Vec::new();
    let read = async {
        while content.len() < LIMIT {
            match answer.chunk().await {
                Ok(Some(piece)) => content.extend_from_slice(&piece),
                Ok(None) | Err(_) => return,
            }
        }
    };
    timeout(WAIT, read).await.ok();
    content
}

/// The code of an error; none for the content of another server.
fn code(content: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(content);
    let code = element(&text, "Code")?;
    // It goes into messages.
    let is_plain = |code: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=LONGEST).contains(&code.len()) && code.bytes().all(plain)
    };
    (text.contains("<Error>") && is_plain(code)).then(|| code.to_owned())
}

/// The text of the first element of this name in an answer of S3, which has no attributes there.
pub(crate) fn element<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = answer.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_answers_are_found() {
        let answer =
            "<?xml version=\"1.0\"?>\n<R xmlns=\"x\"><Key>a</Key><UploadId> b-c </UploadId></R>";
        assert_eq!(element(answer, "UploadId"), Some("b-c"));
        assert_eq!(element(answer, "Code"), None);
        assert_eq!(element("<UploadId>", "UploadId"), None);
    }

    #[test]
    fn only_an_error_of_s3_has_a_code() {
        let documented = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>\n  <Code>NoSuchKey</Code>\n  \
                          <Message>The resource you requested does not exist</Message>\n</Error>";
        assert_eq!(code(documented.as_bytes()).as_deref(), Some("NoSuchKey"));
        // The rest need not be there.
        let begun = "<Error><Code>SignatureDoesNotMatch</Code><Mess";
        assert_eq!(
            code(begun.as_bytes()).as_deref(),
            Some("SignatureDoesNotMatch")
        );
        let long = format!("<Error><Code>{}</Code></Error>", "x".repeat(LONGEST + 1));
        for other in [
            "",
            "{\"errors\":[{\"code\":\"DENIED\"}]}",
            "<html>Forbidden</html>",
            "<Result><Code>NoSuchKey</Code></Result>",
            "<Error><Code></Code></Error>",
            "<Error><Code>a\u{1b}[31m</Code></Error>",
            &long,
        ] {
            assert_eq!(code(other.as_bytes()), None, "{other}");
        }
    }
}
