package network

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// Nobody has named a resolver when the engine starts, as before DHCP has answered. A pod with the host's resolver
// asks the cluster's DNS until then, and afterwards the LAN's, with the LAN's search domains; no pod asks a server
// that nobody has named.
func TestAResolverThatComesLate(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	if out := labtest.Output(t, ctx, a, "cat", "/etc/resolv.conf"); strings.TrimSpace(out) != "" {
		t.Fatalf("the device began with a resolver: %s", out)
	}
	made := 0
	of := func() (text string) {
		for _, spec := range []string{`"dnsPolicy":"Default"`, `"hostNetwork":true`} {
			made++
			name := fmt.Sprint("resolver-", made)
			labtest.Kubectl(t, ctx, a, "run", name, "--image="+mainjob.Image, "--overrides", `{"spec":{"nodeName":"a","terminationGracePeriodSeconds":1,`+spec+`}}`, "--command", "--", "busybox", "sleep", "600")
			labtest.Kubectl(t, ctx, a, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
			text += labtest.Kubectl(t, ctx, a, "exec", name, "--", "busybox", "cat", "/etc/resolv.conf")
			labtest.Kubectl(t, ctx, a, "delete", "pod", name)
		}
		return text
	}
	if got := of(); strings.Count(got, "nameserver") != 2 || strings.Count(got, "nameserver 10.43.0.10") != 2 {
		t.Errorf("without a resolver pods ask\n%s", got)
	}
	t.Cleanup(func() { labtest.Output(t, suite.Bounded(t, time.Minute), a, "sh", "-c", ": > /etc/resolv.conf") })
	labtest.Output(t, ctx, a, "sh", "-c", `printf 'search lab.example\nnameserver 10.77.0.1\n' > /etc/resolv.conf`)
	await.NoError(t, ctx, time.Minute, "new pods ask the LAN's", func() error {
		if got := of(); strings.Count(got, "nameserver") != 2 || strings.Count(got, "nameserver 10.77.0.1") != 2 || strings.Count(got, "search lab.example") != 2 {
			return fmt.Errorf("they ask\n%s", got)
		}
		return nil
	})
}
