package health

// Every kind of problem. A code is never reused with another meaning. The findings of doctor's probes are in probes.go.
var (
	ContainerdRecovered = declare("containerd-recovered", Warning, "containers and images were made anew")
	DatastoreRecovered  = declare("datastore-recovered", Error, "the cluster's datastore was damaged and recovered")
	DatastoreNewer      = declare("datastore-newer", Error, "the cluster's data are of a newer Kubernetes")
	DatastoreUnusable   = declare("datastore-unusable", Error, "the SQL database with the cluster's objects cannot be used")
	SnapshotFailed      = declare("snapshot-failed", Warning, "no snapshot of the cluster's datastore could be made")
	SetAside            = declare("set-aside", Info, "damaged files were set aside")
	StateRecovered      = declare("state-recovered", Warning, "state.db was damaged and recovered from its copy")

	// add-ons
	StorageUnusable = declare("storage-unusable", Error, "no volumes can be made")
	VolumesUnknown  = declare("volumes-unknown", Warning, "data on a peer belong to no claim of this cluster")
	VolumeMissing   = declare("volume-missing", Error, "the files of a volume are not there")
	VolumeUnclaimed = declare("volume-unclaimed", Warning, "the claim of a volume is missing since the datastore was recovered")
	MetricsForeign  = declare("metrics-foreign", Info, "resource metrics come from another program")
	ServicePending  = declare("service-pending", Warning, "a Service of type LoadBalancer has no address")
	IngressUnserved = declare("ingress-unserved", Warning, "an Ingress is not served as it is written")
	ServiceWeights  = declare("service-weights", Warning, "weights of Services shared with peers are not in force")
	IngressPort     = declare("ingress-port", Error, "Ingresses cannot be reached: another program has their port")

	ClockImplausible     = declare("clock-implausible", Error, "the clock cannot be right")
	CertificatesInvalid  = declare("certificates-invalid", Error, "certificates of the cluster are not valid now, or end soon")
	ClockNotSynchronized = declare("clock-not-synchronized", Info, "no time service keeps the clock")

	// usage
	MemoryOverBudget = declare("memory-over-budget", Warning, "Rivulet takes more memory than it promises")
	WritesOverBudget = declare("writes-over-budget", Warning, "more is written to the card than an idle device should")

	// watchdog
	StateNotWritable = declare("state-not-writable", Error, "the state folder cannot be written to")
	EngineSilent     = declare("engine-silent", Error, "the API server does not answer")
	EngineUnusable   = declare("engine-unusable", Error, "Rivulet cannot use the API server, which answers")

	DataInMemory  = declare("data-in-memory", Error, "the data partition cannot be used, and no cluster runs")
	SlotLeft      = declare("slot-left", Warning, "one of the two system slots did not come up, and the other runs")
	Firstboot     = declare("firstboot", Error, "the file on the boot partition has a mistake")
	WebConsole    = declare("web-console", Warning, "the web console cannot be reached")
	StatusPage    = declare("status-page", Info, "the status page is not where a browser looks for it")
	HostFirewall  = declare("host-firewall", Warning, "the LAN may reach ports that are the cluster's own")
	HostNetwork   = declare("host-network", Error, "the device lacks an address, a route or a setting that pods need")
	NetworkPolicy = declare("network-policy", Error, "network policies are not enforced")
	Tunnel        = declare("tunnel", Error, "there is no tunnel to any peer")
	ControlPort   = declare("control-port", Error, "peers cannot reach this device")
	Fabric        = declare("fabric", Error, "a part of the network between clusters does not work")
	Offload       = declare("offload", Error, "a part of offloading does not run")

	ConfigBroken    = declare("config-broken", Error, "the configuration file is not used")
	ConfigUnsafe    = declare("config-unsafe", Warning, "others can read or write the configuration")
	ConfigUnkept    = declare("config-unkept", Warning, "the configuration cannot be kept as the last good one")
	ConfigUnwatched = declare("config-unwatched", Warning, "changes of the configuration are not seen by themselves")
	ConfigShadowed  = declare("config-shadowed", Warning, "a file with settings is not read")
	KeyChanged      = declare("key-changed", Warning, "a cluster has come under a known name with another key")
	PeerCutOff      = declare("peer-cut-off", Warning, "pods are on a peer that does not answer")
	PeerWaiting     = declare("peer-waiting", Info, "a cluster waits for approval")
	TrustLAN        = declare("trust-lan", Warning, "peers remain that the configuration would not trust")
	TrustClosed     = declare("trust-closed", Warning, "no new peer is trusted")
	Broker          = declare("broker", Warning, "clusters that are found by a broker alone are not found")
	PeerAddress     = declare("peer-address", Warning, "a name among the peers leads to nobody")
	BurstUnusable   = declare("burst-unusable", Warning, "no pods can be sent to a burst target")
	BurstCredential = declare("burst-credential", Warning, "the credential of a burst target ends soon")
	BurstLeft       = declare("burst-left", Warning, "a burst target that was removed is not cleaned up yet")
	LANUnmatched    = declare("lan-unmatched", Warning, "no interface is allowed as a LAN")

	JoinFailed     = declare("join-failed", Warning, "this device has not joined the cluster of its configuration")
	WorkerUnusable = declare("worker-unusable", Error, "this device cannot use the cluster that it belongs to")
	WorkerRemoved  = declare("worker-removed", Error, "this device was removed from its cluster")

	StandbyBehind = declare("standby-behind", Warning, "no standby could become the server now")

	UpgradeWaiting    = declare("upgrade-waiting", Info, "an upgrade waits for pods that hold it")
	UpgradeTrying     = declare("upgrade-trying", Info, "another version is being tried")
	UpgradeUndone     = declare("upgrade-undone", Warning, "the last upgrade was undone")
	UpgradeUnreadable = declare("upgrade-unreadable", Warning, "the state of upgrades cannot be read")

	// age
	VersionOld    = declare("version-old", Warning, "this version is old")
	VersionBehind = declare("version-behind", Info, "a peer has a newer version")
	BackupOld     = declare("backup-old", Warning, "this cluster was not saved for a long time")
)
