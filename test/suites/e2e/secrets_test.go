package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// A provider has the Secrets that pods there refer to, and no others, and no longer: through a
// pod's move to another provider, an edit, a restart of home's supervisor. A pod whose Secret
// is not there waits as one at home does, and runs once it is made.
func TestSecretsOfPodsAway(t *testing.T) {
	ctx := need(t, 5*time.Minute)
	a := devices["a"]
	const ns = "secrets"
	apply := func(items ...string) {
		t.Helper()
		labtest.Output(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", `{"apiVersion":"v1","kind":"List","items":[`+strings.Join(items, ",")+`]}`)
	}
	secret := func(name, value string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q,"namespace":%q},"stringData":{"PW":%q}}`, name, ns, value)
	}
	pod := func(name, node, env, mount string) string {
		volumes, mounts := "", ""
		if mount != "" {
			volumes, mounts = fmt.Sprintf(`,"volumes":[{"name":"s","secret":{"secretName":%q}}]`, mount), `,"volumeMounts":[{"name":"s","mountPath":"/s"}]`
		}
		if env != "" {
			mounts += fmt.Sprintf(`,"envFrom":[{"secretRef":{"name":%q}}]`, env)
		}
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q},"spec":{"terminationGracePeriodSeconds":1,"nodeSelector":{"kubernetes.io/hostname":%q}%s,
"containers":[{"name":"web","image":%q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}%s}]}}`, name, ns, node, volumes, mainjob.Image, mounts)
	}
	ready := func(name string) {
		t.Helper()
		await.NoError(t, ctx, 0, name+" is ready", func() error {
			_, err := a.Kubectl(ctx, "-n", ns, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=20s")
			return err
		})
	}
	has := func(provider, want string) {
		t.Helper()
		await.NoError(t, ctx, 0, provider+" has the Secrets "+want, func() error {
			out, err := devices[provider].Kubectl(ctx, "get", "secrets", "-A", "-l", "rivulet.dev/reflected", "-o", "jsonpath={.items[*].metadata.name}")
			if err == nil && out != want {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
	}
	labtest.CleanUp(t, func(ctx context.Context) {
		_, _ = a.Kubectl(ctx, "delete", "namespace", ns, "--ignore-not-found")
	})
	apply(fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"rivulet.dev/offload":"any"}}}`, ns), secret("pw", "first"), secret("unused", "x"))

	apply(pod("env", "b", "pw", ""), pod("mount", "b", "", "pw"))
	ready("env")
	ready("mount")
	if got := labtest.Kubectl(t, ctx, a, "-n", ns, "exec", "env", "--", "/bin/busybox", "sh", "-c", "echo $PW"); !strings.Contains(got, "first") {
		t.Errorf("the variable away is %q", got)
	}
	has("b", "pw")
	has("c", "")
	kill(t, ctx, a, "supervisor")
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	peered(t, ctx)
	apply(secret("pw", "second"))
	await.NoError(t, ctx, 0, "an edited Secret is edited in the volume away", func() error {
		out, err := a.Kubectl(ctx, "-n", ns, "exec", "mount", "--", "/bin/busybox", "cat", "/s/PW")
		if err == nil && !strings.Contains(out, "second") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	labtest.Kubectl(t, ctx, a, "-n", ns, "delete", "pod", "env", "mount")
	apply(pod("env", "c", "pw", ""))
	ready("env")
	has("b", "")
	has("c", "pw")

	for _, where := range []string{"a", "b"} {
		apply(pod("env-"+where, where, "later", ""), pod("mount-"+where, where, "", "later"))
	}
	for _, where := range []string{"a", "b"} {
		await.NoError(t, ctx, 0, "on "+where+" pods say what they wait for", func() error {
			out, err := a.Kubectl(ctx, "-n", ns, "get", "pod", "env-"+where, "-o", "jsonpath={.status.containerStatuses[0].state.waiting}")
			if err == nil && !(strings.Contains(out, "CreateContainerConfigError") && strings.Contains(out, `secret \"later\" not found`)) {
				err = fmt.Errorf("%s", out)
			}
			if err != nil {
				return err
			}
			out, err = a.Kubectl(ctx, "-n", ns, "get", "events", "--field-selector", "reason=FailedMount,involvedObject.name=mount-"+where, "-o", "jsonpath={.items[*].message}")
			if err == nil && !strings.Contains(out, `secret "later" not found`) {
				err = fmt.Errorf("events: %q", out)
			}
			return err
		})
	}
	apply(secret("later", "x"))
	for _, where := range []string{"a", "b"} {
		ready("env-" + where)
		ready("mount-" + where)
	}
	labtest.Kubectl(t, ctx, a, "-n", ns, "delete", "pod", "--all")
	has("b", "")
	has("c", "")
}
