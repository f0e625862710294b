// Package policy evaluates which namespaces are offloaded, and how. It reads the labels of namespaces. It alone writes
// the admission policies rivulet-offload, by which the API server itself adds to a new pod of such a namespace what the
// scheduler needs, and rivulet-images (see package fit), and Warning events on namespaces with an invalid label.
// Restart: the labels are the state, and the API server continues without Rivulet. Failure: an invalid label counts as
// off.
package policy

// Labels and annotations of Rivulet's offloading. Users write the first two on
// a namespace; everything else is Rivulet's own.
const (
	// NamespaceLabel is the mode of offloading of a namespace: burst, remote, any, services or off. A pod with the value off stays at
	// home, see KeptHome.
	NamespaceLabel = "rivulet.dev/offload"
	// NamespaceToLabel restricts it to the named target, on all of its platforms.
	NamespaceToLabel = "rivulet.dev/offload-to"

	// PreferLabel orders what the pods of a namespace may run on: Cheapest, Nearest or Spread.
	PreferLabel = "rivulet.dev/prefer"
	// PriceLabel on a virtual node is its price, from 0 (cheapest, the default) to 9: rivulet peer NAME --price.
	PriceLabel = "rivulet.dev/price"
	// NearnessLabel on a virtual node is the class of the round trip to it, from 0 (more than 500 ms, or not known) to 9
	// (at most 1 ms).
	NearnessLabel = "rivulet.dev/nearness"

	// OpenLabel, written by users on a namespace or a Service, opens its pods to other
	// clusters: OpenToAll, OpenToGroup or the ID of a peer.
	OpenLabel = "rivulet.dev/open-to"

	// VirtualNodeLabel marks virtual nodes; its value is the target's ID.
	VirtualNodeLabel = "rivulet.dev/virtual-node"
	// WorkerLabel marks Nodes of workers: WorkerIsolates while they isolate tenants, WorkerPlain otherwise, when no pod of
	// a tenant is scheduled there.
	WorkerLabel                 = "rivulet.dev/worker"
	WorkerPlain, WorkerIsolates = "true", "isolates"
	// TargetLabel on a virtual node is the target's name. A target has a node for each platform; the first one has the
	// target's name itself.
	TargetLabel = "rivulet.dev/target"
	// KindLabel on a virtual node is the kind of its target: peer, burst.
	KindLabel = "rivulet.dev/kind"
	// After is a label of virtual nodes that are filled last, and a taint (PreferNoSchedule): home first, then peers,
	// then these. Pods of namespaces with any tolerate it.
	After = "rivulet.dev/after"
	// VirtualTaint keeps pods that are not offloaded off virtual nodes (NoSchedule).
	VirtualTaint = "rivulet.dev/virtual"
	// AwayTaint makes the scheduler prefer home (PreferNoSchedule); burst pods do not tolerate it.
	AwayTaint = "rivulet.dev/away"
	// UnchosenTaint keeps new pods off the virtual node of a peer that is not chosen (NoSchedule), see Nodes.
	UnchosenTaint = "rivulet.dev/unchosen"
	// WithdrawnTaint closes the virtual node of a target whose offer is withdrawn (NoSchedule).
	WithdrawnTaint = "rivulet.dev/withdrawn"

	// HostLabel on a twin of a peer's virtual cluster is that peer, which accounts for it.
	HostLabel = "rivulet.dev/host-cluster"
	// OriginLabel marks a consumer's objects on a provider; its value is the consumer's cluster ID.
	OriginLabel = "rivulet.dev/origin"
	// ShareLabel, with the value "true", is the label in containerd of an image that tenants may use.
	ShareLabel = "rivulet.dev/share"
	// ProvidedLabel is the label in containerd of an image that Courses name. Its value is kept if the image is pinned for
	// them alone, else set, and after each + a group of virtual clusters that may use the image.
	ProvidedLabel = "rivulet.dev/provided"
	// HomeNamespaceAnnotation, HomePodAnnotation and HomeUIDLabel tie an away pod to its pod at home.
	HomeNamespaceAnnotation = "rivulet.dev/home-namespace"
	HomePodAnnotation       = "rivulet.dev/home-pod"
	HomeUIDLabel            = "rivulet.dev/home-uid"
	// HomeGenerationAnnotation is the metadata.generation of the home pod whose spec the away pod has, if that has
	// changed since its creation.
	HomeGenerationAnnotation = "rivulet.dev/home-generation"
	// KeptLabel marks pods of a consumer that are their own record; its value is a replacement.Mode.
	KeptLabel = "rivulet.dev/kept"
	// ReflectedLabel marks an object kept equal to one of the same name at home.
	ReflectedLabel = "rivulet.dev/reflected"
	// HomeAddressAnnotation, on a Service in a twin, is its cluster IP at home.
	HomeAddressAnnotation = "rivulet.dev/home-address"
	// HomeNodeAnnotation, on a Service in a twin, is the address of home's node: the ports of the
	// Service are node ports there.
	HomeNodeAnnotation = "rivulet.dev/home-node"
	// HomeAddressesAnnotation marks an away pod that was made with home's addresses, of Services ("true") or also of
	// pods ("pods"); its provider translates them. It is set on creation, or never.
	HomeAddressesAnnotation = "rivulet.dev/home-addresses"
	// HomeAddressesOfServices and HomeAddressesOfPods are its values: with the second the pod has home's address of it,
	// and reaches pods by home's addresses.
	HomeAddressesOfServices, HomeAddressesOfPods = "true", "pods"
	// HomeVolume is the volume of such a pod in which its provider writes the pod's address: HomeAddressFile has the
	// variable HomeAddressKey, HomeHostsFile is its /etc/hosts.
	HomeVolume                                     = "rivulet-home"
	HomeAddressFile, HomeAddressKey, HomeHostsFile = "address", "POD_IP", "hosts"
	// IngressClassAnnotation, on a reflected Ingress, is its class on the target; the default is the target's default
	// class.
	IngressClassAnnotation = "rivulet.dev/ingress-class"
	// IngressServicePrefix is the prefix of Services in twins behind Ingresses: their endpoints are pods there, written
	// by Kubernetes.
	IngressServicePrefix = "rivulet-ingress-"
	// LANServicePrefix is the prefix of Services in twins that a virtual cluster opens on the LAN, LANLabel marks them.
	// Their provider makes them type NodePort and writes LANAddressAnnotation, or LANRefusedAnnotation with the reason.
	LANServicePrefix     = "rivulet-lan-"
	LANLabel             = "rivulet.dev/lan-service"
	LANAddressAnnotation = "rivulet.dev/lan-address"
	LANRefusedAnnotation = "rivulet.dev/lan-refused"
	// LentLabel lends an IngressClass, RuntimeClass or StorageClass to other clusters. On an IngressClass its value is the
	// namespace of the controller, whose pods may therefore reach tenants.
	LentLabel = "rivulet.dev/lent"
	// ReflectAnnotation, written by users, with the value off keeps an object at home; on a namespace it sets this for
	// kinds, see Kinds.
	ReflectAnnotation = "rivulet.dev/reflect"
)

// The values of OpenLabel, in addition to the ID of a peer.
const (
	OpenToAll   = "all"   // all peers
	OpenToGroup = "group" // peers that have proved the group's secret
)

// Preference is the order in which nodes are filled, within what When allows.
type Preference string

// The values of PreferLabel.
const (
	Cheapest Preference = "cheapest" // a low price first; home counts as 0
	Nearest  Preference = "nearest"  // a short round trip first; home is nearest
	Spread   Preference = "spread"   // replicas evenly over home and targets
)

// When is the mode in which pods of a namespace leave home.
type When string

// The values of NamespaceLabel.
const (
	Burst  When = "burst"  // home first, away when home is full
	Remote When = "remote" // only away
	Any    When = "any"    // wherever the scheduler places it
	Off    When = "off"    // only at home
	// Services is Off for pods; Services of the namespace exist away for pods of other namespaces.
	Services When = "services"
)
