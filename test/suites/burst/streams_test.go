package burst

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
)

// talk is a pod with a program that is talked to. Its first life is short, so that there
// is a log of a previous container; its tar is for kubectl cp. It mounts a token.
const talk = `
apiVersion: v1
kind: Pod
metadata: {name: talk, namespace: lab}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: talk
    image: ` + image + `
    imagePullPolicy: Never
    stdin: true
    securityContext: {runAsUser: 1000}
    command: [sh, -c, "test -e /tmp/tar || { busybox ln -s /bin/busybox /tmp/tar; echo a first life; exit 3; }; echo begun; while read line; do echo got $line; done"]
    env: [{name: PATH, value: "/bin:/tmp"}]
    volumeMounts: [{name: tmp, mountPath: /tmp}]
  volumes: [{name: tmp, emptyDir: {}}]
`

// streams are kubectl's, between home and a real kubelet at the campus: web serves HTTP,
// talk is talked to.
func streams(t *testing.T, ctx context.Context, home *lab.Device, web string) {
	apply(t, ctx, home, talk)
	in := "rivulet kubectl -n lab "
	shell := func(script string) (string, error) { return home.Run(ctx, "sh", "-ec", script) }
	says := func(t *testing.T, what, script, want string) {
		t.Helper()
		await.NoError(t, ctx, 2*time.Minute, what, func() error {
			if out, err := shell(script); err != nil || !strings.Contains(out, want) {
				return fmt.Errorf("%q, want %q: %w", out, want, err)
			}
			return nil
		})
	}
	says(t, "logs", in+"logs talk", "begun")
	says(t, "logs --previous", in+"logs --previous talk", "a first life")
	t.Run("attach, and a log that is followed", func(t *testing.T) {
		out, err := shell(`
			` + in + `logs -f talk >/tmp/follow 2>&1 & log=$!
			mkfifo /tmp/typed
			` + in + `attach -i talk </tmp/typed >/tmp/attach 2>&1 & attach=$!
			exec 3>/tmp/typed
			echo hello >&3
			for i in $(seq 300); do grep -q 'got hello' /tmp/attach && grep -q 'got hello' /tmp/follow && break; sleep 0.1; done
			kill $log $attach
			echo attach $(grep -c 'got hello' /tmp/attach), log $(grep -c 'got hello' /tmp/follow)`)
		if err != nil || !strings.Contains(out, "attach 1, log 1") {
			t.Errorf("%q %v", out, err)
		}
	})
	t.Run("exec", func(t *testing.T) {
		out, err := shell(`printf 'one\ntwo\n' | ` + in + `exec -i talk -- busybox tac; ` + in + `exec talk -- sh -c 'exit 7' || echo ended with $?`)
		if err != nil || out != "two\none\nended with 7\n" {
			t.Errorf("%q %v", out, err)
		}
		// script gives kubectl a terminal of its own; its window size arrives a moment after the program has started.
		size := "test -t 0 || exit 1; for i in $(busybox seq 50); do s=$(busybox stty size); test \"$s\" = \"33 77\" && break; sleep 0.1; done; echo $s"
		out, err = home.Run(ctx, "script", "-qec", "stty rows 33 cols 77; "+in+"exec -it talk -- sh -c '"+size+"'", "/dev/null")
		if err != nil || !strings.Contains(out, "33 77") {
			t.Errorf("the terminal's size: %q %v", out, err)
		}
	})
	t.Run("cp", func(t *testing.T) {
		if out, err := shell(`cd /tmp; head -c 300000 /dev/urandom >out; ` + in + `cp out talk:/tmp/file; ` + in + `cp talk:/tmp/file back; cmp out back`); err != nil {
			t.Errorf("%q %v", out, err)
		}
	})
	t.Run("port-forward", func(t *testing.T) {
		out, err := shell(in + `port-forward pod/` + web + ` 18080:8080 >/tmp/pf.log 2>&1 & pf=$!
			for i in $(seq 300); do grep -q Forwarding /tmp/pf.log && break; sleep 0.1; done
			busybox wget -qO- http://127.0.0.1:18080/ || cat /tmp/pf.log
			kill $pf`)
		if err != nil || !strings.Contains(out, `"pod":"`+web+`"`) {
			t.Errorf("%q %v", out, err)
		}
	})
	t.Run("a token of home and home's authority are mounted", func(t *testing.T) {
		dir := "/var/run/secrets/kubernetes.io/serviceaccount/"
		out, err := shell(in + "exec talk -- sh -c 'busybox wc -c <" + dir + "token; busybox cat " + dir + "namespace; echo; busybox cat " + dir + "ca.crt'")
		fields := strings.SplitN(out, "\n", 3)
		if err != nil || len(fields) != 3 || len(fields[0]) < 3 || fields[1] != "lab" {
			t.Fatalf("%q %v", out, err)
		}
		authority, err := shell(in + `get configmap kube-root-ca.crt -o jsonpath='{.data.ca\.crt}'`)
		if err != nil || strings.TrimSpace(authority) == "" || strings.TrimSpace(fields[2]) != strings.TrimSpace(authority) {
			t.Errorf("ca.crt there is %q, home's %q %v", fields[2], authority, err)
		}
	})
	t.Run("that nobody measures there is told", func(t *testing.T) {
		says(t, "in the status", "rivulet burst status campus", "the cluster serves no resource metrics")
		if out, err := shell(in + "top pod talk"); err == nil {
			t.Errorf("kubectl top shows %q", out)
		}
	})
	t.Run("deleted", func(t *testing.T) {
		if _, err := shell(in + "delete pod talk --timeout=60s"); err != nil {
			t.Error(err)
		}
		if _, err := shell(in + "get pod talk"); err == nil {
			t.Error(errors.New("the pod is there still"))
		}
	})
}
