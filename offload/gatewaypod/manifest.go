package gatewaypod

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"rivulet/fabric/gateway/gatewayproto"
)

// PartLabel is on every object that is made here, and on no other object of this cluster.
const (
	PartLabel = "rivulet.dev/part"
	partValue = "gateway"
	// podLabel is on the gateway's pod, with the name of its Deployment.
	podLabel = "rivulet.dev/gateway"
	// sumAnnotation is a hash of the last intended Deployment: defaults from the API server do not count.
	sumAnnotation = "rivulet.dev/gateway-sum"
)

// DefaultShell is an image that any cluster with Internet access can pull.
const DefaultShell = "busybox:stable"

const (
	configDir  = "/etc/rivulet-gateway"
	programDir = "/program"
	program    = programDir + "/rivulet-gateway"
)

func (g *Gateway) meta(name string) metav1.ObjectMeta {
	labels := maps.Clone(g.cfg.Labels)
	labels[PartLabel] = partValue
	return metav1.ObjectMeta{Name: name, Namespace: g.cfg.Namespace, Labels: labels}
}

// ours distinguishes this cluster's objects from others with the same name.
func (g *Gateway) ours(o metav1.Object) bool {
	have := o.GetLabels()
	for key, value := range g.cfg.Labels {
		if have[key] != value {
			return false
		}
	}
	return have[PartLabel] == partValue
}

func (g *Gateway) podLabels() map[string]string {
	labels := g.meta("").Labels
	labels[podLabel] = g.name
	return labels
}

// deployment is the gateway's: one pod without special needs, as the given user.
func (g *Gateway) deployment(who *corev1.PodSecurityContext) *appsv1.Deployment {
	yes, no, one := true, false, int32(1)
	soon := int64(10)
	c := corev1.Container{
		Name: "gateway", Image: g.cfg.Image,
		Ports: []corev1.ContainerPort{
			{Name: "tunnel", ContainerPort: gatewayproto.TunnelPort, Protocol: corev1.ProtocolUDP},
			{Name: "dns", ContainerPort: gatewayproto.DNSPort, Protocol: corev1.ProtocolUDP},
			{Name: "dns-tcp", ContainerPort: gatewayproto.DNSPort, Protocol: corev1.ProtocolTCP},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("192Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/v1/ready", Port: intstr.FromInt32(gatewayproto.ReadyPort)}},
			PeriodSeconds: 2, FailureThreshold: 3,
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: configDir, ReadOnly: true}},
	}
	volumes := []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: g.name}}}}
	if g.cfg.Image == "" {
		c.Image = g.cfg.Shell
		c.Command = []string{"/bin/sh", "-c", "until [ -x " + program + " ]; do sleep 1; done; exec " + program}
		room := resource.MustParse("64Mi")
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "program", MountPath: programDir})
		volumes = append(volumes, corev1.Volume{Name: "program", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &room}}})
	}
	d := &appsv1.Deployment{ObjectMeta: g.meta(g.name), Spec: appsv1.DeploymentSpec{
		Replicas: &one,
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{podLabel: g.name}},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: g.podLabels(), Annotations: map[string]string{"rivulet.dev/gateway-version": programVersion}},
			Spec: corev1.PodSpec{
				AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
				SecurityContext: who,
				Containers:      []corev1.Container{c}, Volumes: volumes,
				// All pods depend on it: another node takes over soon when its own is lost.
				Tolerations: []corev1.Toleration{
					{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &soon},
					{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &soon},
				},
			},
		},
	}}
	raw, _ := json.Marshal(d.Spec) // always marshals
	sum := sha256.Sum256(raw)
	d.Annotations = map[string]string{sumAnnotation: hex.EncodeToString(sum[:8])}
	return d
}

// programVersion is that of the program that this package needs; another value causes a new pod.
const programVersion = "2"

// dnsService is the Service for names.
func (g *Gateway) dnsService() *corev1.Service {
	return &corev1.Service{ObjectMeta: g.meta(g.name), Spec: corev1.ServiceSpec{
		Selector: map[string]string{podLabel: g.name},
		Ports: []corev1.ServicePort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(gatewayproto.DNSPort)},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(gatewayproto.DNSPort)},
		},
	}}
}

// ensure makes the objects that the gateway needs before it can run.
func (g *Gateway) ensure(ctx context.Context) error {
	if err := g.write(ctx); err != nil {
		return err
	}
	if err := g.ensureDNS(ctx); err != nil {
		return err
	}
	g.problem("network policy", g.ensurePolicies(ctx))
	return g.ensureDeployment(ctx)
}

func (g *Gateway) ensureDNS(ctx context.Context) error {
	services := g.campus.CoreV1().Services(g.cfg.Namespace)
	have, err := services.Get(ctx, g.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		have, err = services.Create(ctx, g.dnsService(), metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("gateway: Service %s: %w", g.name, err)
	}
	if !g.ours(have) {
		return fmt.Errorf("gateway: there is a Service %s that is not ours: remove it, or use another namespace", g.name)
	}
	ip, err := netip.ParseAddr(have.Spec.ClusterIP)
	if err != nil {
		return fmt.Errorf("gateway: Service %s has no address", g.name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dns != ip {
		g.dns = ip
		g.subs.Notify()
	}
	return nil
}

func (g *Gateway) ensureDeployment(ctx context.Context) error {
	deployments := g.campus.AppsV1().Deployments(g.cfg.Namespace)
	who, err := g.identity(ctx)
	if err != nil {
		return err
	}
	want := g.deployment(who)
	have, err := deployments.Get(ctx, g.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = deployments.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !g.ours(have):
		return fmt.Errorf("gateway: there is a Deployment %s that is not ours: remove it, or use another namespace", g.name)
	case err == nil && have.Annotations[sumAnnotation] != want.Annotations[sumAnnotation]:
		want.ResourceVersion = have.ResourceVersion
		_, err = deployments.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("gateway: Deployment %s: %w", g.name, err)
	}
	return nil
}

// ensurePolicies writes the NetworkPolicies, if that is allowed: home's pods receive from the gateway and each other;
// the gateway may send, and so may home's pods if other policies restrict their egress.
func (g *Gateway) ensurePolicies(ctx context.Context) error {
	policies := g.campus.NetworkingV1().NetworkPolicies(g.cfg.Namespace)
	all, err := policies.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("NetworkPolicies cannot be listed (%w): what may reach our pods is up to the campus", err)
	}
	shut := false
	for _, p := range all.Items {
		if !g.ours(&p) && restrictsEgress(p) {
			shut = true
		}
	}
	for _, want := range g.policies(shut) {
		have, err := policies.Get(ctx, want.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, err = policies.Create(ctx, want, metav1.CreateOptions{})
		case err == nil && !g.ours(have):
			return fmt.Errorf("there is a NetworkPolicy %s that is not ours: remove it", want.Name)
		case err == nil && have.Annotations[sumAnnotation] != want.Annotations[sumAnnotation]:
			want.ResourceVersion = have.ResourceVersion
			_, err = policies.Update(ctx, want, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("NetworkPolicy %s cannot be written (%w): what may reach our pods is up to the campus", want.Name, err)
		}
	}
	return nil
}

// restrictsEgress reports whether a policy restricts the egress of pods with these labels. One that selects by other
// labels may or may not select them; it counts.
func restrictsEgress(p netv1.NetworkPolicy) bool {
	return slices.Contains(p.Spec.PolicyTypes, netv1.PolicyTypeEgress)
}

func (g *Gateway) policies(shut bool) []*netv1.NetworkPolicy {
	mine := metav1.LabelSelector{MatchLabels: map[string]string{podLabel: g.name}}
	tenants := metav1.LabelSelector{MatchLabels: g.cfg.Labels} // on the gateway as well
	fromTenants := []netv1.NetworkPolicyPeer{{PodSelector: &tenants}}
	pods := netv1.NetworkPolicySpec{PodSelector: tenants, PolicyTypes: []netv1.PolicyType{netv1.PolicyTypeIngress},
		Ingress: []netv1.NetworkPolicyIngressRule{{From: fromTenants}}}
	if shut {
		pods.PolicyTypes = append(pods.PolicyTypes, netv1.PolicyTypeEgress)
		pods.Egress = []netv1.NetworkPolicyEgressRule{{To: fromTenants}}
	}
	// Home and the campus's DNS can be anywhere; and a kubelet probes readiness.
	ready := intstr.FromInt32(gatewayproto.ReadyPort)
	udp, tcp, tunnel := corev1.ProtocolUDP, corev1.ProtocolTCP, intstr.FromInt32(gatewayproto.TunnelPort)
	gate := netv1.NetworkPolicySpec{PodSelector: mine, PolicyTypes: []netv1.PolicyType{netv1.PolicyTypeIngress, netv1.PolicyTypeEgress},
		Ingress: []netv1.NetworkPolicyIngressRule{{From: fromTenants}, {Ports: []netv1.NetworkPolicyPort{{Protocol: &tcp, Port: &ready}, {Protocol: &udp, Port: &tunnel}}}},
		Egress:  []netv1.NetworkPolicyEgressRule{{}}}
	out := []*netv1.NetworkPolicy{{ObjectMeta: g.meta(g.name + "-pods"), Spec: pods}, {ObjectMeta: g.meta(g.name), Spec: gate}}
	for _, p := range out {
		raw, _ := json.Marshal(p.Spec)
		sum := sha256.Sum256(raw)
		p.Annotations = map[string]string{sumAnnotation: hex.EncodeToString(sum[:8])}
	}
	return out
}

// Remove deletes the objects of Run. It continues if one is missing or may not be deleted.
func (g *Gateway) Remove(ctx context.Context) error {
	g.cfg.Fabric.SetGateway(g.cfg.Name, "", netip.Prefix{})
	return g.removeAll(ctx)
}
