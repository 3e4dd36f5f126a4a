//! A server that answers as Amazon EC2 and its metadata service do, on the network of the nodes: what a machine asks of its cloud, and what
//! the cloud's controller asks about all machines.
//!
//! Formats: the EC2 Query API of version 2016-11-15 (<https://docs.aws.amazon.com/AWSEC2/latest/APIReference/>) and version 2 of the
//! metadata service (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html>).

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use namespace_tests::hub::{Hub, Network};

/// Region, zone and the zone's own name.
pub(crate) const REGION: &str = "eu-central-1";
pub(crate) const ZONE: &str = "eu-central-1a";
pub(crate) const ZONE_ID: &str = "euc1-az2";
/// The type of all machines.
pub(crate) const KIND: &str = "m5.large";
/// The name of the cluster, which is in a tag of each machine: by its name no other machine is found.
const CLUSTER: &str = "lab";
/// Where the metadata service is for every machine, whose token it wants with each request, and the role's key.
const METADATA: &str = "169.254.169.254";
const TOKEN: &str = "AQAEALH0b7==";
const KEY: &str = "ASIATESTTESTTESTTEST";
/// How long a client may take with a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// A machine of the account.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Its id, `i-…`.
    pub(crate) id: String,
    /// Its private address, by which the metadata service knows it.
    pub(crate) address: String,
    /// What describing it comes to.
    pub(crate) answer: Answer,
}

/// What EC2 says of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It runs.
    Running,
    /// Too many requests (`RequestLimitExceeded`).
    Throttled,
    /// No machine has this id (`InvalidInstanceID.NotFound`): it was terminated an hour ago.
    Gone,
}

impl Machine {
    /// The machine with this last number of its address, which runs.
    pub(crate) fn new(number: u8) -> Self {
        Self {
            id: format!("i-{number:017x}"),
            address: Network::Near.address(number),
            answer: Answer::Running,
        }
    }

    /// Its private name, as EC2 makes it of the address.
    pub(crate) fn name(&self) -> String {
        format!(
            "ip-{}.{REGION}.compute.internal",
            self.address.replace('.', "-")
        )
    }

    /// What its node is called by: `spec.providerID`.
    pub(crate) fn provider_id(&self) -> String {
        format!("aws:///{ZONE}/{}", self.id)
    }

    fn xml(&self) -> String {
        format!(
            "<item><reservationId>r-1</reservationId><ownerId>123456789012</ownerId><instancesSet><item><instanceId>{}</instanceId>\
             <instanceState><code>16</code><name>running</name></instanceState><privateDnsName>{}</privateDnsName>\
             <instanceType>{KIND}</instanceType><placement><availabilityZone>{ZONE}</availabilityZone></placement>\
             <subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId><privateIpAddress>{address}</privateIpAddress>\
             <tagSet><item><key>kubernetes.io/cluster/{CLUSTER}</key><value>owned</value></item></tagSet>\
             <networkInterfaceSet><item><networkInterfaceId>eni-1</networkInterfaceId><status>in-use</status>\
             <attachment><deviceIndex>0</deviceIndex></attachment><privateIpAddressesSet><item>\
             <privateIpAddress>{address}</privateIpAddress><primary>true</primary></item></privateIpAddressesSet></item>\
             </networkInterfaceSet></item></instancesSet></item>",
            self.id,
            self.name(),
            address = self.address
        )
    }
}

/// What the server knows and has seen.
#[derive(Debug, Default)]
struct State {
    machines: Vec<Machine>,
    /// Actions that were asked for, with those that no key of the role had signed.
    asked: BTreeMap<String, usize>,
    unsigned: Vec<String>,
}

/// The cloud; it answers until the test's process ends.
#[derive(Clone, Debug)]
pub(crate) struct Amazon {
    state: Arc<Mutex<State>>,
}

impl Amazon {
    /// A cloud with these machines, on the hub.
    pub(crate) fn start(hub: &Hub, machines: Vec<Machine>) -> Result<Self> {
        hub.run(&format!("ip addr add {METADATA}/32 dev lo"))?;
        let state = State {
            machines,
            ..State::default()
        };
        let amazon = Self {
            state: Arc::new(Mutex::new(state)),
        };
        for address in [METADATA.to_owned(), Network::Near.gateway()] {
            // The listener is of the network of the thread that makes it.
            let listener = thread::scope(|scope| {
                let made = scope.spawn(|| -> Result<TcpListener> {
                    hub.enter()?;
                    TcpListener::bind((address.as_str(), 80))
                        .with_context(|| format!("listening at {address}"))
                });
                made.join().expect("it has no panic of its own")
            })?;
            let amazon = amazon.clone();
            thread::spawn(move || amazon.serve(&listener));
        }
        Ok(amazon)
    }

    /// Lines of the controller's configuration that lead it here.
    pub(crate) fn configuration() -> String {
        format!(
            "[ServiceOverride \"1\"]\nService=EC2\nRegion={REGION}\nURL=http://{}\nSigningRegion={REGION}\nSigningMethod=v4\nSigningName=ec2\n",
            Network::Near.gateway()
        )
    }

    /// Changes what is said of a machine.
    pub(crate) fn says(&self, id: &str, answer: Answer) {
        let mut state = self.state();
        for machine in state.machines.iter_mut().filter(|machine| machine.id == id) {
            machine.answer = answer;
        }
    }

    /// How often an action was asked for.
    pub(crate) fn asked(&self, action: &str) -> usize {
        self.state().asked.get(action).copied().unwrap_or_default()
    }

    /// Actions that no key of the role had signed.
    pub(crate) fn unsigned(&self) -> Vec<String> {
        self.state().unsigned.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, listener: &TcpListener) {
        for stream in listener.incoming().flatten() {
            let amazon = self.clone();
            // A client that breaks off is its own matter.
            thread::spawn(move || amazon.answer(stream).ok());
        }
    }

    /// One request a connection.
    fn answer(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let peer = stream.peer_addr()?.ip().to_string();
        let request = Request::read(&stream)?;
        let (status, headers, body) = match request.line.as_str() {
            "POST /" => self.ec2(&request),
            _ => self.metadata(&request, &peer),
        };
        write!(
            stream,
            "HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )?;
        Ok(())
    }

    fn metadata(&self, request: &Request, peer: &str) -> (u16, &'static str, String) {
        let own = self
            .state()
            .machines
            .iter()
            .find(|machine| machine.address == peer)
            .cloned();
        let Some(own) = own else {
            return (404, "", String::new());
        };
        if request.line == "PUT /latest/api/token" {
            return (
                200,
                "X-Aws-Ec2-Metadata-Token-Ttl-Seconds: 21600\r\n",
                TOKEN.to_owned(),
            );
        }
        if request.header("x-aws-ec2-metadata-token") != TOKEN {
            return (401, "", String::new());
        }
        let body = match request.line.trim_start_matches("GET /latest/") {
            "meta-data/instance-id" => own.id,
            "dynamic/instance-identity/document" => format!(
                r#"{{"region":"{REGION}","availabilityZone":"{ZONE}","instanceId":"{}","instanceType":"{KIND}","privateIp":"{}"}}"#,
                own.id, own.address
            ),
            "meta-data/iam/security-credentials/" => "nodes".to_owned(),
            "meta-data/iam/security-credentials/nodes" => format!(
                r#"{{"Code":"Success","LastUpdated":"2026-01-01T00:00:00Z","Type":"AWS-HMAC","AccessKeyId":"{KEY}","SecretAccessKey":"secret","Token":"session","Expiration":"2099-01-01T00:00:00Z"}}"#
            ),
            _ => return (404, "", String::new()),
        };
        (200, "", body)
    }

    fn ec2(&self, request: &Request) -> (u16, &'static str, String) {
        const XML: &str = "Content-Type: text/xml;charset=UTF-8\r\n";
        let form = request.form();
        let action = form.get("Action").cloned().unwrap_or_default();
        let mut state = self.state();
        *state.asked.entry(action.clone()).or_default() += 1;
        let scope = format!("/{REGION}/ec2/aws4_request");
        let signature = request.header("authorization");
        if !signature.starts_with(&format!("AWS4-HMAC-SHA256 Credential={KEY}/"))
            || !signature.contains(&scope)
        {
            state.unsigned.push(action.clone());
        }
        let refused = |code: &str, status: u16| {
            let body = format!(
                "<?xml version=\"1.0\"?><Response><Errors><Error><Code>{code}</Code><Message>of this test</Message></Error></Errors><RequestID>1</RequestID></Response>"
            );
            (status, XML, body)
        };
        let items = match action.as_str() {
            "DescribeInstances" => match described(&form, &state.machines) {
                Ok(machines) => format!(
                    "<reservationSet>{}</reservationSet>",
                    machines.iter().map(Machine::xml).collect::<String>()
                ),
                Err(code) => {
                    return refused(
                        code,
                        if code.starts_with("Request") {
                            503
                        } else {
                            400
                        },
                    );
                }
            },
            "DescribeAvailabilityZones" => format!(
                "<availabilityZoneInfo><item><zoneName>{ZONE}</zoneName><zoneState>available</zoneState><regionName>{REGION}</regionName><zoneId>{ZONE_ID}</zoneId><zoneType>availability-zone</zoneType></item></availabilityZoneInfo>"
            ),
            "DescribeInstanceTopology" => return refused("UnsupportedOperation", 400),
            _ => return refused("UnauthorizedOperation", 403),
        };
        let body = format!(
            "<?xml version=\"1.0\"?><{action}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>1</requestId>{items}</{action}Response>"
        );
        (200, XML, body)
    }
}

/// The machines of a request: those of its ids, or with a private name that its filter has. A code of EC2's in place of an answer.
fn described(
    form: &BTreeMap<String, String>,
    all: &[Machine],
) -> std::result::Result<Vec<Machine>, &'static str> {
    let values = |prefix: &str| -> Vec<String> {
        form.iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, value)| value.clone())
            .collect()
    };
    let ids = values("InstanceId.");
    let filter = form.iter().find(|(_, value)| *value == "private-dns-name");
    let names = filter.map(|(name, _)| values(&name.replace(".Name", ".Value.")));
    let mut found = Vec::new();
    for machine in all {
        let wanted = match &names {
            Some(names) => names.contains(&machine.name()),
            None => ids.is_empty() || ids.contains(&machine.id),
        };
        match machine.answer {
            _ if !wanted => {}
            Answer::Running => found.push(machine.clone()),
            Answer::Throttled => return Err("RequestLimitExceeded"),
            // By its id it is asked for in vain; a filter finds nothing.
            Answer::Gone if ids.is_empty() => {}
            Answer::Gone => return Err("InvalidInstanceID.NotFound"),
        }
    }
    let is_known = |id: &String| all.iter().any(|machine| machine.id == *id);
    match ids.iter().all(is_known) {
        true => Ok(found),
        false => Err("InvalidInstanceID.NotFound"),
    }
}

/// A request.
struct Request {
    /// Method and path.
    line: String,
    /// Names in small letters, and values.
    headers: Vec<(String, String)>,
    body: String,
}

impl Request {
    fn read(stream: &TcpStream) -> Result<Self> {
        let mut reader = BufReader::new(stream).take(1 << 20);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                bail!("the client broke off");
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let first = lines.first().context("no request line")?;
        let line = first
            .rsplit_once(' ')
            .map_or(first.as_str(), |(line, _)| line)
            .to_owned();
        let headers = lines[1..].iter().filter_map(|line| line.split_once(':'));
        let headers: Vec<_> = headers
            .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
            .collect();
        let mut request = Self {
            line,
            headers,
            body: String::new(),
        };
        let length: u64 = request.header("content-length").parse().unwrap_or_default();
        reader.take(length).read_to_string(&mut request.body)?;
        Ok(request)
    }

    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// The fields of the body. What is asked for here has no escapes but those of a name's characters.
    fn form(&self) -> BTreeMap<String, String> {
        let pairs = self.body.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}
