//! Questions for a new cluster object: each answer is checked by the rules of the object before the next question.

use std::io::{BufRead, Write};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::object::ClusterFile;

/// A question.
struct Question {
    /// What is asked.
    text: &'static str,
    /// The template's line that the answer takes the place of.
    line: &'static str,
    /// What an empty answer means.
    empty: &'static str,
}

/// The questions. A line of the template names its field, with or without the sign of a comment.
const QUESTIONS: &[Question] = &[
    Question {
        text: "The API server's address, for nodes and kubectl: a name or an address, with a port if it is not 6443",
        line: "# endpoint = \"api.example.test:6443\"",
        empty: "none yet",
    },
    Question {
        text: "The version of Kubernetes",
        line: "# version = \"1.36.3\"",
        empty: "that of the node's image",
    },
    Question {
        text: "The network of pods: bridge, for nodes on one network, flannel, for nodes on several, or none, where an addon brings it",
        line: "# cni = \"bridge\"",
        empty: "bridge",
    },
    Question {
        text: "The subnet of pods",
        line: "pods = \"10.244.0.0/16\"",
        empty: "10.244.0.0/16",
    },
    Question {
        text: "The subnet of services",
        line: "services = \"10.96.0.0/12\"",
        empty: "10.96.0.0/12",
    },
    Question {
        text: "The domain of services",
        line: "domain = \"cluster.local\"",
        empty: "cluster.local",
    },
];

/// Asks, and gives the text of the object for this file.
///
/// # Errors
/// If the answers end before the questions, or a question cannot be written.
pub fn ask(
    path: &Path,
    name: &str,
    answers: &mut impl BufRead,
    to: &mut impl Write,
) -> Result<String> {
    let mut object = ClusterFile::template(name)?;
    for question in QUESTIONS {
        object = answered(path, &object, question, answers, to)?;
    }
    Ok(object)
}

/// The object with the answer to a question, which is asked until it is right.
fn answered(
    path: &Path,
    object: &str,
    question: &Question,
    answers: &mut impl BufRead,
    to: &mut impl Write,
) -> Result<String> {
    loop {
        write!(to, "{} [{}]: ", question.text, question.empty)?;
        to.flush()?;
        let mut answer = String::new();
        if answers
            .read_line(&mut answer)
            .context("reading the answer")?
            == 0
        {
            bail!("the answers ended; nothing is written");
        }
        let answer = answer.trim();
        if answer.is_empty() {
            return Ok(object.to_owned());
        }
        let line = question.line.trim_start_matches("# ");
        let (field, _) = line.split_once(" = ").context("a line without a field")?;
        let value = toml::Value::String(answer.to_owned());
        let with = object.replacen(question.line, &format!("{field} = {value}"), 1);
        match ClusterFile::parse(path, &with) {
            Ok(_) => return Ok(with),
            Err(error) => writeln!(to, "{error:#}")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(answers: &str) -> (Result<String>, String) {
        let mut said = Vec::new();
        let path = Path::new("blue.toml");
        let object = ask(path, "blue", &mut answers.as_bytes(), &mut said);
        (object, String::from_utf8(said).unwrap())
    }

    #[test]
    fn empty_answers_give_the_template() {
        let (object, said) = asked(&"\n".repeat(QUESTIONS.len()));
        assert_eq!(object.unwrap(), ClusterFile::template("blue").unwrap());
        assert_eq!(said.matches("]: ").count(), QUESTIONS.len());
    }

    #[test]
    fn a_wrong_answer_is_asked_for_again() {
        let (object, said) =
            asked("api.example.test\n\nflanel\nnone\n10.0.0.0/33\n10.1.0.0/16\n\nblue.test\n");
        let file = ClusterFile::parse(Path::new("blue.toml"), &object.unwrap()).unwrap();
        assert_eq!(file.endpoint().unwrap(), "api.example.test:6443");
        let fields = file.fields();
        assert_eq!(fields["cni"], "none");
        assert_eq!(fields["networks"]["pods"], "10.1.0.0/16");
        assert_eq!(fields["networks"]["domain"], "blue.test");
        for wrong in ["cni: expected \"bridge\"", "10.0.0.0/33"] {
            assert!(said.contains(wrong), "{said}");
        }
    }

    #[test]
    fn answers_that_end_give_nothing() {
        let (object, _) = asked("api.example.test\n");
        let error = object.unwrap_err().to_string();
        assert_eq!(error, "the answers ended; nothing is written");
    }
}
