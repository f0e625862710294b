package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"rivulet/offload/consumer/fit"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// One API server for both: starting one takes longer than either.
func TestAgainstAPIServer(t *testing.T) {
	server := apiserver.Start(t)
	t.Run("watcher", func(t *testing.T) { testWatcher(t, server) })
	t.Run("admission", func(t *testing.T) { testAdmission(t, server) })
	t.Run("updates", func(t *testing.T) { testUpdates(t, server) })
	t.Run("resize", func(t *testing.T) { testResize(t, server) })
	t.Run("images", func(t *testing.T) { testImages(t, server) })
	t.Run("order", func(t *testing.T) { testOrder(t, server) })
	t.Run("many nodes", func(t *testing.T) { testManyNodes(t, server) })
	t.Run("preference", func(t *testing.T) { testPreference(t, server) })
	t.Run("spread", func(t *testing.T) { testSpread(t, server) })
	t.Run("spread is kept", func(t *testing.T) { testSpreadIsKept(t, server) })
}

// What the API server makes of pods, by shape and by namespace. Written as the
// user writes it and as the scheduler reads it.
func testAdmission(t *testing.T, server *apiserver.Server) {
	config := server.Config
	client := kubernetes.NewForConfigOrDie(config)
	for range 2 { // the second time changes nothing
		if err := policy.EnsureAdmission(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	for name, labels := range map[string]map[string]string{
		"adm-burst": {policy.NamespaceLabel: "burst"}, "adm-burst-b": {policy.NamespaceLabel: "burst", policy.NamespaceToLabel: "b"},
		"adm-remote": {policy.NamespaceLabel: "remote"}, "adm-remote-b": {policy.NamespaceLabel: "remote", policy.NamespaceToLabel: "b"},
		"adm-any": {policy.NamespaceLabel: "any"}, "adm-claims": {policy.NamespaceLabel: "any"}, "adm-off": {policy.NamespaceLabel: "off"}, "adm-services": {policy.NamespaceLabel: "services"}, "adm-bad": {policy.NamespaceLabel: "sometimes"}, "adm-none": nil,
	} {
		namespace(t, client, name, labels)
	}
	if _, err := client.CoreV1().Namespaces().Patch(t.Context(), "adm-claims", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"rivulet.dev/reflect":"Secret=off, PersistentVolumeClaim=off"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// A policy takes effect a moment after it is stored.
	await.True(t, time.Minute, "the policy takes effect", func() bool {
		got, err := create(t.Context(), client, "adm-burst", `containers: [{name: c, image: i}]`, "", nil)
		return err == nil && got.Spec.Affinity != nil
	})

	const (
		virtual   = `{key: rivulet.dev/virtual, operator: Exists, effect: NoSchedule}`
		awayTaint = `{key: rivulet.dev/away, operator: Exists, effect: PreferNoSchedule}`
		after     = `{key: rivulet.dev/after, operator: Exists, effect: PreferNoSchedule}`
		anyTaint  = awayTaint + `,` + after
		homeFirst = `{weight: 100, preference: {matchExpressions: [{key: rivulet.dev/virtual-node, operator: DoesNotExist}]}},
			{weight: 50, preference: {matchExpressions: [{key: rivulet.dev/after, operator: DoesNotExist}]}}`
		home     = `{key: rivulet.dev/virtual-node, operator: DoesNotExist}`
		isAway   = `{key: rivulet.dev/virtual-node, operator: Exists}`
		onB      = `{key: rivulet.dev/target, operator: In, values: [b]}`
		arm      = `{key: kubernetes.io/arch, operator: In, values: [arm64]}`
		fast     = `{key: disk, operator: In, values: [ssd]}`
		hasArm   = `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [` + arm + `]}]}}}`
		twoTerms = `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [` + arm + `]}, {matchExpressions: [` + fast + `]}]}}}`
	)
	required := func(terms string) string {
		return `requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [` + terms + `]}`
	}
	preferred := func(terms string) string {
		return `preferredDuringSchedulingIgnoredDuringExecution: [` + terms + `]`
	}
	kept := map[string]string{policy.NamespaceLabel: string(policy.Off)}
	cases := []struct {
		name, namespace, pod, owner, tolerations, affinity string
		labels                                             map[string]string
	}{
		{name: "burst prefers home", namespace: "adm-burst", tolerations: virtual, affinity: `{nodeAffinity: {` + preferred(homeFirst) + `}}`},
		{name: "any does not care", namespace: "adm-any", tolerations: virtual + `,` + anyTaint, affinity: `null`},
		{name: "remote must leave", namespace: "adm-remote", tolerations: virtual + `,` + awayTaint, affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+isAway+`]}`) + `}}`},
		{name: "remote to b", namespace: "adm-remote-b", tolerations: virtual + `,` + awayTaint, affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+isAway+`,`+onB+`]}`) + `}}`},
		{name: "burst to b: home or b", namespace: "adm-burst-b", tolerations: virtual,
			affinity: `{nodeAffinity: {` + preferred(homeFirst) + `,` + required(`{matchExpressions: [`+home+`]}, {matchExpressions: [`+onB+`]}`) + `}}`},

		{name: "off", namespace: "adm-off", affinity: `null`},
		{name: "its Services alone", namespace: "adm-services", affinity: `null`},
		{name: "a value nobody knows", namespace: "adm-bad", affinity: `null`},
		{name: "not labelled", namespace: "adm-none", affinity: `null`},
		{name: "of a DaemonSet", namespace: "adm-remote", owner: "DaemonSet", affinity: `null`},
		{name: "of a ReplicaSet", namespace: "adm-any", owner: "ReplicaSet", tolerations: virtual + `,` + anyTaint, affinity: `null`},

		{name: "tolerations are kept", namespace: "adm-burst", pod: `tolerations: [{key: gpu, operator: Exists}]`,
			tolerations: `{key: gpu, operator: Exists},` + virtual, affinity: `{nodeAffinity: {` + preferred(homeFirst) + `}}`},
		{name: "tolerations are not doubled", namespace: "adm-any", pod: `tolerations: [` + awayTaint + `, {key: rivulet.dev/virtual, operator: Exists}]`,
			tolerations: awayTaint + `, {key: rivulet.dev/virtual, operator: Exists},` + after, affinity: `null`},
		{name: "a pod that tolerates all", namespace: "adm-any", pod: `tolerations: [{operator: Exists}]`,
			tolerations: `{operator: Exists},` + virtual + `,` + anyTaint, affinity: `null`},
		{name: "preferences are kept", namespace: "adm-burst",
			pod:         `affinity: {nodeAffinity: {` + preferred(`{weight: 7, preference: {matchExpressions: [`+fast+`]}}`) + `}}`,
			tolerations: virtual, affinity: `{nodeAffinity: {` + preferred(`{weight: 7, preference: {matchExpressions: [`+fast+`]}},`+homeFirst) + `}}`},
		{name: "other affinity is kept", namespace: "adm-remote",
			pod:         `affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {a: b}}}]}}`,
			tolerations: virtual + `,` + awayTaint,
			affinity: `{podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {a: b}}}]},
				nodeAffinity: {` + required(`{matchExpressions: [`+isAway+`]}`) + `}}`},
		{name: "requirements are kept by burst", namespace: "adm-burst", pod: hasArm, tolerations: virtual,
			affinity: `{nodeAffinity: {` + preferred(homeFirst) + `,` + required(`{matchExpressions: [`+arm+`]}`) + `}}`},
		{name: "requirements are met too by remote", namespace: "adm-remote", pod: hasArm, tolerations: virtual + `,` + awayTaint,
			affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+arm+`,`+isAway+`]}`) + `}}`},
		{name: "every alternative must leave", namespace: "adm-remote", pod: twoTerms, tolerations: virtual + `,` + awayTaint,
			affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+arm+`,`+isAway+`]}, {matchExpressions: [`+fast+`,`+isAway+`]}`) + `}}`},
		{name: "every alternative, home or b", namespace: "adm-burst-b", pod: twoTerms, tolerations: virtual,
			affinity: `{nodeAffinity: {` + preferred(homeFirst) + `,` + required(
				`{matchExpressions: [`+arm+`,`+home+`]}, {matchExpressions: [`+fast+`,`+home+`]}, {matchExpressions: [`+arm+`,`+onB+`]}, {matchExpressions: [`+fast+`,`+onB+`]}`) + `}}`},
		{name: "fields are kept", namespace: "adm-remote", tolerations: virtual + `,` + awayTaint,
			pod:      `affinity: {nodeAffinity: {` + required(`{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}`) + `}}`,
			affinity: `{nodeAffinity: {` + required(`{matchFields: [{key: metadata.name, operator: In, values: [n1]}], matchExpressions: [`+isAway+`]}`) + `}}`},
		{name: "a term that matches nothing goes on doing so", namespace: "adm-remote", tolerations: virtual + `,` + awayTaint,
			pod: `affinity: {nodeAffinity: {` + required(`{}`) + `}}`, affinity: `{nodeAffinity: {` + required(`{}`) + `}}`},
		{name: "an empty term beside another", namespace: "adm-remote", tolerations: virtual + `,` + awayTaint,
			pod:      `affinity: {nodeAffinity: {` + required(`{}, {matchExpressions: [`+arm+`]}`) + `}}`,
			affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+arm+`,`+isAway+`]}`) + `}}`},
		{name: "empty affinity", namespace: "adm-remote", pod: `affinity: {nodeAffinity: {}}`, tolerations: virtual + `,` + awayTaint,
			affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+isAway+`]}`) + `}}`},
		{name: "what needs a volume of home stays", namespace: "adm-any", pod: `volumes: [{name: d, csi: {driver: d}}]`, affinity: `null`},
		{name: "claims go along", namespace: "adm-any", tolerations: virtual + `,` + anyTaint, affinity: `null`,
			pod: `volumes: [{name: d, persistentVolumeClaim: {claimName: d}}, {name: e, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}}]`},
		{name: "claims that stay by the namespace's word", namespace: "adm-claims", pod: `volumes: [{name: d, persistentVolumeClaim: {claimName: d}}]`, affinity: `null`},
		{name: "there, what has no claim goes", namespace: "adm-claims", tolerations: virtual + `,` + anyTaint, affinity: `null`},
		{name: "what needs the host stays", namespace: "adm-any", pod: `hostPID: true`, affinity: `null`},
		{name: "what needs a port of the host stays", namespace: "adm-any", pod: `initContainers: [{name: x, image: i, restartPolicy: Always, ports: [{containerPort: 80, hostPort: 80}]}]`, affinity: `null`},
		{name: "what is privileged stays", namespace: "adm-burst", pod: `initContainers: [{name: x, image: i, securityContext: {privileged: true}}]`,
			affinity: `{nodeAffinity: {` + preferred(homeFirst) + `}}`},
		{name: "what has its node's kubelet connect elsewhere stays", namespace: "adm-any", affinity: `null`,
			pod: `initContainers: [{name: x, image: i, restartPolicy: Always, startupProbe: {tcpSocket: {port: 80, host: h}}}]`},
		{name: "hooks that do stay, too", namespace: "adm-any", affinity: `null`,
			pod: `initContainers: [{name: x, image: i, restartPolicy: Always, lifecycle: {preStop: {httpGet: {port: 80, host: h}}}}]`},
		{name: "probes of the pod itself keep nobody", namespace: "adm-any", tolerations: virtual + `,` + anyTaint, affinity: `null`,
			pod: `initContainers: [{name: x, image: i, restartPolicy: Always, livenessProbe: {tcpSocket: {port: 80}}, lifecycle: {preStop: {httpGet: {port: 80}}}}]`},
		{name: "volumes that follow keep nobody", namespace: "adm-any", tolerations: virtual + `,` + anyTaint, affinity: `null`,
			pod: `volumes: [{name: a, emptyDir: {}}, {name: b, configMap: {name: c}}, {name: c, projected: {sources: []}}, {name: d}]`},
		{name: "remote is told why it cannot", namespace: "adm-remote", pod: `hostPID: true`, tolerations: virtual + `,` + awayTaint,
			affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+isAway+`]}`) + `}}`},
		{name: "its label keeps it at home", namespace: "adm-burst", labels: kept, affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+home+`]}`) + `}}`},
		{name: "its label keeps it at home, against remote", namespace: "adm-remote-b", labels: kept, affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+home+`]}`) + `}}`},
		{name: "its label keeps it at home, though it tolerates all", namespace: "adm-any", labels: kept, pod: `tolerations: [{operator: Exists}]`,
			tolerations: `{operator: Exists}`, affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+home+`]}`) + `}}`},
		{name: "its label and its own requirements", namespace: "adm-burst-b", labels: kept, pod: twoTerms,
			affinity: `{nodeAffinity: {` + required(`{matchExpressions: [`+arm+`,`+home+`]}, {matchExpressions: [`+fast+`,`+home+`]}`) + `}}`},
		{name: "another value of its label", namespace: "adm-any", labels: map[string]string{policy.NamespaceLabel: "remote"}, tolerations: virtual + `,` + anyTaint, affinity: `null`},
		{name: "placed by hand", namespace: "adm-remote", pod: `nodeName: n1`, affinity: `null`},
	}
	t.Run("DaemonSets", func(t *testing.T) { testDaemonSets(t, client) })
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := create(t.Context(), client, c.namespace, "containers: [{name: c, image: i}]\n"+c.pod, c.owner, c.labels)
			if err != nil {
				t.Fatal(err)
			}
			var want corev1.PodSpec
			if err := yaml.UnmarshalStrict(fmt.Appendf(nil, "affinity: %s\ntolerations: [%s]", c.affinity, c.tolerations), &want); err != nil {
				t.Fatal(err)
			}
			var tolerations []corev1.Toleration
			for _, tol := range got.Spec.Tolerations { // those that Kubernetes gives every pod
				if tol.TolerationSeconds == nil {
					tolerations = append(tolerations, tol)
				}
			}
			compare(t, "tolerations", tolerations, want.Tolerations)
			compare(t, "affinity", got.Spec.Affinity, want.Affinity)
		})
	}
}

// Pods are kept off the architectures that their images do not have, whatever they ask
// for themselves; after testAdmission, whose namespaces are there.
func testImages(t *testing.T, server *apiserver.Server) {
	ctx, client := t.Context(), kubernetes.NewForConfigOrDie(server.Config)
	m := fit.New(client, slog.New(slog.DiscardHandler))
	const image = "example.org:5000/my_lab/web:v1.2@sha256:abc"
	if kept, err := m.Keeps(ctx, "adm-burst", image, "arm64"); err != nil || kept {
		t.Fatalf("nothing was learnt: %v, %v", kept, err)
	}
	for _, arch := range []string{"riscv64", "arm64"} {
		if err := m.Learn(ctx, image, arch, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	await.True(t, time.Minute, "the API server keeps the image off", func() bool {
		kept, err := m.Keeps(ctx, "adm-burst", image, "arm64")
		return err == nil && kept
	})
	for _, c := range []struct {
		what, namespace, pod string
		kept                 bool
	}{
		{"only away", "adm-remote", `containers: [{name: c, image: ` + image + `}]`, true},
		{"an init container", "adm-any", "containers: [{name: c, image: i}]\ninitContainers: [{name: p, image: " + image + "}]", true},
		{"every alternative", "adm-burst-b", "containers: [{name: c, image: " + image + "}]\n" +
			`affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: Exists}]}, {matchFields: [{key: metadata.name, operator: In, values: [n]}]}]}}}`, true},
		{"another image", "adm-burst", `containers: [{name: c, image: i}]`, false},
		{"at home only", "adm-none", `containers: [{name: c, image: ` + image + `}]`, false},
		{"placed by hand", "adm-remote", "nodeName: n1\ncontainers: [{name: c, image: " + image + "}]", false},
	} {
		got, err := create(ctx, client, c.namespace, c.pod, "", nil)
		if err != nil || fit.Avoids(got, "arm64") != c.kept || fit.Avoids(got, "riscv64") != c.kept || fit.Avoids(got, "amd64") {
			t.Errorf("%s: %v, %+v", c.what, err, got.Spec.Affinity)
		}
	}

	// An owner of whose pods b takes none has them elsewhere; others' are not touched.
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "o", UID: "9b5a3a6c-1"}
	for _, target := range []string{"c", "b"} {
		if err := m.LearnOwner(ctx, owner.UID, target, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	for _, target := range []string{"b", "c"} {
		await.True(t, time.Minute, "the API server keeps the owner off "+target, func() bool {
			kept, err := m.KeepsOwner(ctx, "adm-burst-b", owner, target)
			return err == nil && kept
		})
	}
	other := owner
	other.UID = "9b5a3a6c-2"
	if kept, err := m.KeepsOwner(ctx, "adm-burst-b", other, "b"); err != nil || kept {
		t.Errorf("another owner: %v, %v", kept, err)
	}
	if kept, err := m.KeepsOwner(ctx, "adm-burst-b", owner, "d"); err != nil || kept {
		t.Errorf("another target: %v, %v", kept, err)
	}

	// What the pod asks for, where its namespace may run and what its image lacks hold together,
	// and a manifest that knows of the first alone can be applied again.
	const own = `{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [%s]}]},
		{matchExpressions: [{key: kubernetes.io/arch, operator: NotIn, values: [s390x]}]}, {matchFields: [{key: metadata.name, operator: In, values: [n]}]}]}}}`
	affinity := func(text string) (a *corev1.Affinity) {
		if err := yaml.UnmarshalStrict([]byte(text), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, ns := range []string{"adm-burst", "adm-burst-b", "adm-remote", "adm-remote-b", "adm-any"} {
		for _, c := range []struct {
			name, before, after string
			refused             bool
		}{
			{"as-it-was", fmt.Sprintf(own, "ssd"), fmt.Sprintf(own, "ssd"), false},
			{"without-any", "null", "null", false},
			{"another", fmt.Sprintf(own, "ssd"), fmt.Sprintf(own, "hdd"), true},
			{"none-any-more", fmt.Sprintf(own, "ssd"), "null", true},
			{"one-that-was-not", "null", fmt.Sprintf(own, "ssd"), true},
		} {
			made, err := client.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "images-" + c.name},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}, Affinity: affinity(c.before)}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !fit.Avoids(made, "arm64") || !fit.Avoids(made, "riscv64") {
				t.Errorf("%s %s: %+v", ns, c.name, made.Spec.Affinity)
			}
			if c.before != "null" {
				for _, term := range made.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
					has := map[string]int{}
					for _, e := range term.MatchExpressions {
						has[e.Key]++
					}
					if has["disk"]+has["kubernetes.io/arch"]-1+len(term.MatchFields) != 1 || ns == "adm-remote" && has[policy.VirtualNodeLabel] != 1 {
						t.Errorf("%s %s: an alternative is another: %+v", ns, c.name, term)
					}
				}
			}
			t.Cleanup(func() { remove(t, client, ns, made.Name) })
			next := made.DeepCopy()
			next.ResourceVersion, next.Spec.Affinity = "", affinity(c.after)
			got, err := client.CoreV1().Pods(ns).Update(ctx, next, metav1.UpdateOptions{})
			if c.refused != apierrors.IsInvalid(err) || !c.refused && err != nil {
				t.Errorf("%s %s: refused %v, but %v", ns, c.name, c.refused, err)
			} else if err == nil {
				compare(t, ns+" "+c.name, got.Spec.Affinity, made.Spec.Affinity)
			}
		}
	}
}

// A pod is resized in place at home alone; away, and until it is known, the API server says
// why not. After testAdmission.
func testResize(t *testing.T, server *apiserver.Server) {
	ctx, client := t.Context(), kubernetes.NewForConfigOrDie(server.Config)
	for _, c := range []struct{ name, namespace, node, status, refused string }{
		{"at-home", "adm-burst", "n", `{"startTime": "2026-01-01T00:00:00Z"}`, ""},
		{"elsewhere", "adm-none", "n", `{}`, ""},
		{"unscheduled", "adm-remote", "", `{}`, ""},
		{"not-told-yet", "adm-remote", "b", `{}`, "may run on another cluster; try again"},
		{"away", "adm-remote", "b", `{"startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "rivulet.dev/Offloaded", "status": "True"}]}`, "cannot be resized in place"},
	} {
		pods := client.CoreV1().Pods(c.namespace)
		spec := corev1.PodSpec{NodeName: c.node, Containers: []corev1.Container{{Name: "c", Image: "i",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}}
		if c.node != "" && c.namespace != "adm-none" { // admission leaves alone what has its node
			spec.Tolerations = []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
		}
		p, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "resize-" + c.name}, Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { remove(t, client, c.namespace, p.Name) })
		// Others write the pod, too: a patch may meet one of them.
		await.True(t, time.Minute, "its status is written", func() bool {
			_, err = pods.Patch(ctx, p.Name, types.MergePatchType, []byte(`{"status": `+c.status+`}`), metav1.PatchOptions{}, "status")
			return !apierrors.IsConflict(err)
		})
		if err != nil {
			t.Fatal(err)
		}
		await.True(t, time.Minute, "it is resized or refused", func() bool {
			_, err = pods.Patch(ctx, p.Name, types.StrategicMergePatchType, []byte(`{"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "200m"}}}]}}`), metav1.PatchOptions{}, "resize")
			return !apierrors.IsConflict(err) && (c.refused == "" || err != nil) // the policy takes effect a moment after it is stored
		})
		if c.refused == "" && err != nil || c.refused != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.refused)
		}
	}
}

// create makes a pod as the server would, without keeping it.
func create(ctx context.Context, client kubernetes.Interface, ns, spec, owner string, labels map[string]string) (*corev1.Pod, error) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Namespace: ns, Labels: labels}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		return nil, err
	}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: owner, Name: "o", UID: "u"}}
	}
	return client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// remove deletes a pod at once: it would take the place of others.
func remove(t *testing.T, client kubernetes.Interface, ns, name string) {
	t.Helper()
	await.True(t, time.Minute, "pod "+name+" is gone", func() bool { // the test's own context has ended
		err := client.CoreV1().Pods(ns).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		return apierrors.IsNotFound(err)
	})
}

func namespace(t *testing.T, client kubernetes.Interface, name string, labels map[string]string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "the service account of "+name, func() bool {
		_, err := client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
}

func compare(t *testing.T, what string, got, want any) {
	t.Helper()
	if !equality.Semantic.DeepEqual(got, want) {
		g, _ := json.Marshal(got)
		w, _ := json.Marshal(want)
		t.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}
