package tenancy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	away "rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
	"rivulet/test/harness/await"
)

// inContainer, inPod and inVolume are pods with one field more.
func inContainer(field string) string {
	return `spec: {containers: [{name: c, image: i, ` + field + `}]}`
}
func inPod(field string) string {
	return `spec: {containers: [{name: c, image: i}], ` + field + `}`
}
func inVolume(source string) string { return inPod(`volumes: [{name: v, ` + source + `}]`) }
func projected(source string) string {
	return inVolume(`projected: {sources: [{` + source + `}]}`)
}

// notTaken are pods that no provider takes, and that home therefore keeps where it may. There is one for each of refusedFields.
var notTaken = map[string]string{
	"PodSpec.hostNetwork":               inPod(`hostNetwork: true`),
	"PodSpec.hostPID":                   inPod(`hostPID: true`),
	"PodSpec.hostIPC":                   inPod(`hostIPC: true`),
	"PodSpec.hostUsers":                 inPod(`hostUsers: false`),
	"PodSpec.resourceClaims":            inPod(`resourceClaims: [{name: x, resourceClaimName: x}]`),
	"PodSecurityContext.windowsOptions": inPod(`securityContext: {windowsOptions: {runAsUserName: x}}`),
	"SecurityContext.windowsOptions":    inContainer(`securityContext: {windowsOptions: {runAsUserName: x}}`),
	"ContainerPort.hostPort":            inContainer(`ports: [{containerPort: 80, hostPort: 80}]`),
	"Volume.hostPath":                   inVolume(`hostPath: {path: /x}`),
	"Volume.gcePersistentDisk":          inVolume(`gcePersistentDisk: {pdName: x}`),
	"Volume.awsElasticBlockStore":       inVolume(`awsElasticBlockStore: {volumeID: x}`),
	"Volume.gitRepo":                    inVolume(`gitRepo: {repository: x}`),
	"Volume.nfs":                        inVolume(`nfs: {server: s, path: /p}`),
	"Volume.iscsi":                      inVolume(`iscsi: {targetPortal: t, iqn: "iqn.2001-04.com.example:s", lun: 0}`),
	"Volume.glusterfs":                  inVolume(`glusterfs: {endpoints: e, path: p}`),
	"Volume.rbd":                        inVolume(`rbd: {monitors: [m], image: i}`),
	"Volume.flexVolume":                 inVolume(`flexVolume: {driver: a/b}`),
	"Volume.cinder":                     inVolume(`cinder: {volumeID: x}`),
	"Volume.cephfs":                     inVolume(`cephfs: {monitors: [m]}`),
	"Volume.flocker":                    inVolume(`flocker: {datasetName: x}`),
	"Volume.fc":                         inVolume(`fc: {targetWWNs: [x], lun: 0}`),
	"Volume.azureFile":                  inVolume(`azureFile: {secretName: s, shareName: x}`),
	"Volume.vsphereVolume":              inVolume(`vsphereVolume: {volumePath: x}`),
	"Volume.quobyte":                    inVolume(`quobyte: {registry: "h:1", volume: v}`),
	"Volume.azureDisk":                  inVolume(`azureDisk: {diskName: d, diskURI: "https://example.org/d"}`),
	"Volume.photonPersistentDisk":       inVolume(`photonPersistentDisk: {pdID: x}`),
	"Volume.portworxVolume":             inVolume(`portworxVolume: {volumeID: x}`),
	"Volume.scaleIO":                    inVolume(`scaleIO: {gateway: g, system: s, secretRef: {name: s}, volumeName: v}`),
	"Volume.storageos":                  inVolume(`storageos: {volumeName: v}`),
	"Volume.csi":                        inVolume(`csi: {driver: d}`),
	"VolumeProjection.clusterTrustBundle": projected(
		`clusterTrustBundle: {name: x, path: x}`),
	"VolumeProjection.podCertificate": projected(`podCertificate: {signerName: example.com/x, keyType: ED25519, credentialBundlePath: x}`),

	// Fields that are allowed with some values only.
	"hostUsers as ever":                  inPod(`hostUsers: true`),
	"Windows":                            inPod(`os: {name: windows}`),
	"privileged":                         inContainer(`securityContext: {privileged: true}`),
	"NET_ADMIN":                          inContainer(`securityContext: {capabilities: {add: [NET_ADMIN]}}`),
	"IPC_LOCK":                           inContainer(`securityContext: {capabilities: {add: [CHOWN, IPC_LOCK]}}`),
	"MKNOD":                              inContainer(`securityContext: {capabilities: {add: [MKNOD]}}`),
	"NET_RAW":                            inContainer(`securityContext: {capabilities: {add: [NET_RAW]}}`),
	"all capabilities":                   inContainer(`securityContext: {capabilities: {add: [ALL]}}`),
	"one in an init container":           inPod(`initContainers: [{name: d, image: i, securityContext: {capabilities: {add: [SYS_PTRACE]}}}]`),
	"procMount":                          inPod(`hostUsers: false, initContainers: [{name: d, image: i, securityContext: {procMount: Unmasked}}]`),
	"no seccomp":                         inContainer(`securityContext: {seccompProfile: {type: Unconfined}}`),
	"no seccomp in the pod":              inPod(`securityContext: {seccompProfile: {type: Unconfined}}`),
	"a seccomp profile of the device":    inPod(`securityContext: {seccompProfile: {type: Localhost, localhostProfile: x.json}}`),
	"no AppArmor":                        inContainer(`securityContext: {appArmorProfile: {type: Unconfined}}`),
	"no AppArmor in the pod":             inPod(`securityContext: {appArmorProfile: {type: Unconfined}}`),
	"an AppArmor profile of the device":  inContainer(`securityContext: {appArmorProfile: {type: Localhost, localhostProfile: x}}`),
	"AppArmor by an annotation":          "metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/c: unconfined}}\n" + inPod(``),
	"a user of SELinux":                  inPod(`securityContext: {seLinuxOptions: {user: system_u}}`),
	"a role of SELinux":                  inContainer(`securityContext: {seLinuxOptions: {role: system_r}}`),
	"a type of SELinux":                  inContainer(`securityContext: {seLinuxOptions: {type: spc_t}}`),
	"a sysctl":                           inPod(`securityContext: {sysctls: [{name: net.core.somaxconn, value: "1"}]}`),
	"a host in a probe":                  inContainer(`readinessProbe: {httpGet: {host: 10.0.0.1, port: 80}}`),
	"a host in a probe of connections":   inContainer(`startupProbe: {tcpSocket: {host: 10.0.0.1, port: 80}}`),
	"a host in a hook":                   inContainer(`lifecycle: {preStop: {httpGet: {host: 10.0.0.1, port: 80}}}`),
	"a host in a hook before":            inContainer(`lifecycle: {postStart: {tcpSocket: {host: 10.0.0.1, port: 80}}}`),
	"an image volume of no public name":  inVolume(`image: {reference: "localhost:5000/x"}`),
	"huge pages":                         inContainer(`resources: {requests: {hugepages-2Mi: 2Mi, cpu: 1m}, limits: {hugepages-2Mi: 2Mi}}`),
	"huge pages of the pod":              inPod(`resources: {requests: {hugepages-2Mi: 2Mi, cpu: 1m}, limits: {hugepages-2Mi: 2Mi}}`),
	"a container too many":               inPod(`initContainers: [` + containers(policy.MostContainers) + `]`),
	"an image name that is too long":     inPod(`initContainers: [{name: d, image: ` + strings.Repeat("i", policy.MostImage+1) + `}]`),
	"an image volume of such a name":     inVolume(`image: {reference: ` + strings.Repeat("i", policy.MostImage+1) + `}`),
	"an init container of such an image": inPod(`initContainers: [{name: d, image: nas.lan/x}]`),
}

// containers are n containers.
func containers(n int) (list string) {
	for i := range n {
		list += fmt.Sprintf("{name: i%d, image: i}, ", i)
	}
	return strings.TrimSuffix(list, ", ")
}

// taken are pods with fields that are taken with these values.
var taken = map[string]string{
	"nothing":                            inPod(``),
	"capabilities":                       inContainer(`securityContext: {capabilities: {add: [NET_BIND_SERVICE, CHOWN], drop: [ALL]}}`),
	"the runtime's profiles":             inPod(`securityContext: {seccompProfile: {type: RuntimeDefault}, appArmorProfile: {type: RuntimeDefault}}`),
	"the runtime's, in a container":      inContainer(`securityContext: {seccompProfile: {type: RuntimeDefault}, appArmorProfile: {type: RuntimeDefault}, procMount: Default}`),
	"AppArmor by an annotation":          "metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/c: runtime/default}}\n" + inPod(``),
	"SELinux":                            inPod(`securityContext: {seLinuxOptions: {type: container_t, level: "s0:c1"}}`),
	"sysctls":                            inPod(`securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: "1"}, {name: net.ipv4.tcp_rmem, value: "1"}]}`),
	"users":                              inPod(`securityContext: {runAsUser: 1, runAsGroup: 1, fsGroup: 1, runAsNonRoot: true, supplementalGroups: [1]}`),
	"Linux":                              inPod(`os: {name: linux}`),
	"as many containers as there may be": inPod(`initContainers: [` + containers(policy.MostContainers-1) + `]`),
	"as long a name as there may be":     inPod(`initContainers: [{name: d, image: ` + strings.Repeat("i", policy.MostImage) + `}]`),
	"a probe":                            inContainer(`livenessProbe: {httpGet: {port: 80}}, ports: [{containerPort: 80}]`),
	"its own volumes":                    inPod(`volumes: [{name: a, emptyDir: {}}, {name: b, configMap: {name: x}}, {name: c, secret: {secretName: x}}, {name: d, image: {reference: quay.io/a/b}}, {name: e, downwardAPI: {items: []}}]`),
	"a volume of nothing":                inVolume(`projected: {sources: []}`),
	"tokens":                             projected(`serviceAccountToken: {path: x}`),
	"what is home's, and stays behind":   inPod(`affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: x, namespaceSelector: {}}]}}, tolerations: [{key: gpu, operator: Exists}], topologySpreadConstraints: [{maxSkew: 1, topologyKey: x, whenUnsatisfiable: DoNotSchedule}], priorityClassName: system-node-critical`),
}

// What no provider takes home's admission keeps at home, where the namespace may run there, and nothing else: else it would wait
// on a virtual node for ever, or never leave. What is refused is refused for good.
func testWhatHomeKeeps(t *testing.T, p *provider) {
	ctx := t.Context()
	for typ, fields := range refusedFields {
		for field := range fields {
			name := typ + "." + field
			dropped := slices.Contains([]string{"PodSpec.workloadRef", "Affinity.podAffinity", "Affinity.podAntiAffinity", "VolumeProjection.serviceAccountToken"}, name) // by package pod: they are home's
			if _, has := notTaken[name]; has == dropped {
				t.Errorf("%s is refused here: give notTaken a pod with it", name)
			}
		}
	}
	if err := policy.EnsureAdmission(ctx, p.server.Config); err != nil {
		t.Fatal(err)
	}
	twin := p.twinOf(t, carol, "kept")
	c, _ := p.consumer(t, carol, nil)
	home := p.admin.CoreV1().Pods("at-home")
	if _, err := p.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "at-home", Labels: map[string]string{policy.NamespaceLabel: "burst"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	// What becomes of a pod: at home, and if it left.
	fate := func(ctx context.Context, manifest string) (stays bool, refused, err error) {
		p := &corev1.Pod{}
		if err := yaml.UnmarshalStrict([]byte(manifest), p); err != nil {
			return false, nil, err
		}
		p.Name = "x"
		if p, err = home.Create(ctx, p, dry); err != nil {
			return false, nil, err
		}
		stays = !slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == policy.VirtualTaint })
		w, refused := away.Wrap(p, "id", "")
		if refused == nil {
			made := w.ReplicaSet.Spec.Template
			_, refused = c.CoreV1().Pods(twin).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: made.Labels, Annotations: made.Annotations}, Spec: made.Spec}, dry)
			if refused != nil && !replacement.ForGood(refused) {
				err = refused
			}
		}
		return stays, refused, err
	}
	await.Empty(t, time.Minute, "both let a plain pod in", func(ctx context.Context) string {
		stays, refused, err := fate(ctx, taken["nothing"])
		switch {
		case err != nil:
			return err.Error()
		case stays || refused != nil:
			return "not yet"
		}
		return ""
	})
	check := func(what, manifest string, want bool) {
		t.Helper()
		stays, refused, err := fate(ctx, manifest)
		if err != nil || stays != want || (refused != nil) != want {
			t.Errorf("%s: stays at home %v, want %v; away: %v; %v", what, stays, want, refused, err)
		}
	}
	for what, manifest := range notTaken {
		check(what, manifest, true)
	}
	for what, manifest := range taken {
		check(what, manifest, false)
	}
	image := func(name string) string { return `spec: {containers: [{name: c, image: "` + name + `"}]}` }
	for _, name := range publicImages {
		check(name, image(name), false)
	}
	for _, name := range privateImages {
		check(name, image(name), true)
	}
	p.release(t, carol, "kept")
	if err := p.admin.CoreV1().Namespaces().Delete(ctx, "at-home", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
