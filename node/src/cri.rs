//! Requests of the container runtime interface to containerd, by its socket: those that the kubelet makes to start a pod.
//!
//! The interface is gRPC (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>): a message with a prefix of five bytes
//! as the body of a POST by HTTP/2, and a status in the trailers.

mod messages;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request, Response};
use prost::Message;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

pub(crate) use messages::*;

/// How long one request may take: the start of a container under emulation takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// The largest answer.
const LARGEST: usize = 16 << 20;
/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// What is done with a connection.
type Work<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// A connection to containerd.
#[derive(Clone)]
pub(crate) struct Cri {
    sender: SendRequest<Bytes>,
}

impl Cri {
    /// Connects, and runs `work` with the connection.
    ///
    /// # Errors
    /// If nothing listens at `socket`, and what `work` says.
    pub(crate) fn with<'a, F>(socket: &Path, work: impl FnOnce(Self) -> F + 'a) -> Result<()>
    where
        F: Future<Output = Result<()>> + 'a,
    {
        Self::drive(socket, Box::new(|cri| Box::pin(work(cri))))
    }

    /// The same for all callers: a runtime for each would be several KiB of the program.
    fn drive<'a>(socket: &Path, work: Box<dyn FnOnce(Self) -> Work<'a> + 'a>) -> Result<()> {
        let runtime: Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting requests")?;
        runtime.block_on(async {
            let stream = UnixStream::connect(socket)
                .await
                .with_context(|| format!("connecting to {}", socket.display()))?;
            let (sender, connection) = h2::client::handshake(stream).await?;
            // It ends with the runtime.
            tokio::spawn(connection);
            work(Self { sender }).await
        })
    }

    /// The sandboxes of pods of this name, whatever their uid, ended ones too.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn sandboxes(&self, namespace: &str, name: &str) -> Result<Vec<PodSandbox>> {
        let request = ListPodSandboxRequest::of_name(namespace, name);
        let answer: ListPodSandboxResponse = self.call("ListPodSandbox", &request).await?;
        Ok(answer.items)
    }

    /// The containers of a pod, ended ones too.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn containers(&self, uid: &str) -> Result<Vec<Container>> {
        let request = ListContainersRequest::of_pod(uid);
        let answer: ListContainersResponse = self.call("ListContainers", &request).await?;
        Ok(answer.containers)
    }

    /// Makes a sandbox and starts it. Gives its id.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn run_sandbox(&self, config: &PodSandboxConfig) -> Result<String> {
        let request = RunPodSandboxRequest {
            config: Some(config.clone()),
        };
        let answer: RunPodSandboxResponse = self.call("RunPodSandbox", &request).await?;
        Ok(answer.pod_sandbox_id)
    }

    /// Makes a container in a sandbox. Gives its id.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn create_container(
        &self,
        request: &CreateContainerRequest,
    ) -> Result<String> {
        let answer: CreateContainerResponse = self.call("CreateContainer", request).await?;
        Ok(answer.container_id)
    }

    /// Starts a container.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn start_container(&self, id: String) -> Result<()> {
        let request = StartContainerRequest { container_id: id };
        let _: Nothing = self.call("StartContainer", &request).await?;
        Ok(())
    }

    /// Ends a container: it is asked to, and killed after `grace` seconds.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn stop_container(&self, id: String, grace: i64) -> Result<()> {
        let request = StopContainerRequest {
            container_id: id,
            timeout: grace,
        };
        let _: Nothing = self.call("StopContainer", &request).await?;
        Ok(())
    }

    /// Ends a sandbox, and kills what still runs in it.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn stop_sandbox(&self, id: String) -> Result<()> {
        let request = StopPodSandboxRequest { pod_sandbox_id: id };
        let _: Nothing = self.call("StopPodSandbox", &request).await?;
        Ok(())
    }

    /// One request.
    ///
    /// # Errors
    /// If containerd refuses it, by its own words, or does not answer in time.
    pub(crate) async fn call<Q: Message, A: Message + Default>(
        &self,
        method: &str,
        question: &Q,
    ) -> Result<A> {
        let answer = tokio::time::timeout(PATIENCE, self.exchange(method, question)).await;
        let answer = answer.map_err(|_| anyhow!("no answer after {} s", PATIENCE.as_secs()));
        answer
            .and_then(|answer| answer)
            .with_context(|| format!("asking containerd: {method}"))
    }

    async fn exchange<Q: Message, A: Message + Default>(
        &self,
        method: &str,
        question: &Q,
    ) -> Result<A> {
        let request = Request::post(format!(
            "http://localhost/runtime.v1.RuntimeService/{method}"
        ))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut stream) = sender.send_request(request, false)?;
        let length = question.encoded_len();
        let mut body = BytesMut::with_capacity(PREFIX + length);
        body.put_u8(0);
        body.put_u32(u32::try_from(length)?);
        question.encode(&mut body)?;
        stream.send_data(body.freeze(), true)?;
        let response = response.await?;
        ensure!(
            response.status().is_success(),
            "the status of HTTP is {}",
            response.status()
        );
        let (body, trailers) = read(response).await?;
        accepted(&trailers)?;
        message(&body)
    }
}

/// Reads an answer: its body, and its trailers or, if it has no body, its headers.
async fn read(response: Response<h2::RecvStream>) -> Result<(BytesMut, HeaderMap)> {
    let (head, mut stream) = response.into_parts();
    let mut body = BytesMut::new();
    while let Some(chunk) = stream.data().await {
        let chunk = chunk?;
        stream.flow_control().release_capacity(chunk.len())?;
        body.extend_from_slice(&chunk);
        ensure!(body.len() <= LARGEST, "the answer is above {LARGEST} bytes");
    }
    let trailers = stream.trailers().await?;
    Ok((body, trailers.unwrap_or(head.headers)))
}

/// Refuses an answer whose status is not 0.
fn accepted(trailers: &HeaderMap) -> Result<()> {
    let text = |name: &str| {
        let value = trailers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let status = text("grpc-status").context("the answer has no status")?;
    if status != "0" {
        let words = text("grpc-message").unwrap_or_default();
        bail!("{} (status {status})", percent_decoded(&words));
    }
    Ok(())
}

/// The message of a body: the first, after its prefix.
fn message<A: Message + Default>(body: &[u8]) -> Result<A> {
    let cut = || anyhow!("the answer is cut short");
    let (prefix, rest) = body.split_at_checked(PREFIX).ok_or_else(cut)?;
    let [compressed, length @ ..] = prefix else {
        return Err(cut());
    };
    ensure!(*compressed == 0, "the answer is compressed");
    let length = u32::from_be_bytes(length.try_into()?);
    let bytes = rest.get(..usize::try_from(length)?).ok_or_else(cut)?;
    Ok(A::decode(bytes)?)
}

/// Percent signs and two digits are one byte, as in `grpc-message`.
fn percent_decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let byte = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .filter(|_| *first == b'%');
        out.push(byte.unwrap_or(*first));
        rest = match byte {
            Some(_) => after.get(2..).unwrap_or_default(),
            None => after,
        };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_in_containerds_words() {
        let mut trailers = HeaderMap::new();
        assert!(accepted(&trailers).is_err());
        trailers.insert("grpc-status", "0".parse().unwrap());
        accepted(&trailers).unwrap();
        trailers.insert("grpc-status", "5".parse().unwrap());
        trailers.insert("grpc-message", "image %22a%22: 100%".parse().unwrap());
        let error = accepted(&trailers).unwrap_err().to_string();
        assert_eq!(error, "image \"a\": 100% (status 5)");
    }

    #[test]
    fn a_message_that_is_cut_or_compressed_is_refused() {
        let answer = RunPodSandboxResponse {
            pod_sandbox_id: "abc".to_owned(),
        };
        let bytes = answer.encode_to_vec();
        let mut body = vec![0, 0, 0, 0, u8::try_from(bytes.len()).unwrap()];
        body.extend(&bytes);
        assert_eq!(message::<RunPodSandboxResponse>(&body).unwrap(), answer);
        for length in 0..body.len() {
            assert!(message::<RunPodSandboxResponse>(&body[..length]).is_err());
        }
        body[0] = 1;
        assert!(message::<RunPodSandboxResponse>(&body).is_err());
    }
}
