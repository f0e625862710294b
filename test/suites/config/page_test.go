package config

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/systemd"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// visit looks at a page from a device; options are curl's.
func visit(t *testing.T, ctx context.Context, from *lab.Device, url string, options ...string) (code, body string) {
	t.Helper()
	args := append([]string{"curl", "--silent", "--max-time", "10", "--noproxy", "*", "--write-out", "\n%{http_code}"}, options...)
	out := labtest.On(t, ctx, from, append(args, url)...).Out
	i := strings.LastIndex(out, "\n")
	return out[i+1:], out[:max(i, 0)]
}

// A lab PC shows nothing until it is asked to. Then its neighbour sees the page, long
// before Kubernetes is there, and by name; pods, and what a peer's pods are seen as, do not.
func TestStatusPage(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	b, c := suite.Devices["b"], suite.Devices["c"]
	lan := strings.Fields(labtest.Must(t, ctx, c, "sh", "-c", "ip -o -4 addr show dev eth0 | awk '{print $4}' | cut -d/ -f1"))[0]
	if code, _ := visit(t, ctx, b, "http://"+lan+"/"); code != "000" {
		t.Errorf("there is a page that nobody asked for: %s", code)
	}
	write(t, ctx, c, cFile, "statusPage: true\n")
	await.NoError(t, ctx, 30*time.Second, "the neighbour sees the page", func() error {
		if code, body := visit(t, ctx, b, "http://"+lan+"/"); code != "200" || !strings.Contains(body, "<h1>c</h1>") {
			return fmt.Errorf("%s: %s", code, body)
		}
		return nil
	})
	await.NoError(t, ctx, 30*time.Second, "the page has a name", func() error {
		if url := labtest.Status(t, ctx, c).StatusPage; url != "http://c.local" {
			return errors.New(url)
		}
		return nil
	})
	if code, _ := visit(t, ctx, b, "http://"+lan+"/", "--header", "Host: evil.example"); code != "421" {
		t.Errorf("asked for by a web site's name: %s", code)
	}
	// riv0's address is where pods and peers come from.
	for _, from := range []string{"10.42.255.254"} {
		if code, body := visit(t, ctx, c, "http://"+lan+"/", "--interface", from); code != "000" {
			t.Errorf("from %s: %s %s", from, code, body)
		}
	}

	// A device of the image has the page unasked. From the start of the process: it is
	// there before the API is.
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	write(t, ctx, c, cFile, "")
	labtest.Must(t, ctx, c, "sh", "-c", "mkdir -p $(dirname "+systemd.ImageMark+") && echo a > "+systemd.ImageMark)
	begun := time.Now()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	var first string
	await.NoError(t, ctx, 20*time.Second, "the page is there within 20 s", func() error {
		code, body := visit(t, ctx, b, "http://"+lan+"/")
		if first = body; code != "200" {
			return errors.New(code)
		}
		return nil
	})
	t.Logf("the page was there %s after the start", time.Since(begun).Round(time.Millisecond))
	if !strings.Contains(first, "setting up") {
		t.Errorf("the first page is not one of a device that is being set up:\n%s", first)
	}
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 30*time.Second, "the page says that it is ready", func() error {
		if _, body := visit(t, ctx, b, "http://"+lan+":7480/"); !strings.Contains(body, "<b>node</b> Ready") {
			return errors.New(body)
		}
		return nil
	})

	// By the name that all devices share it shows those of the LAN, with links to their pages.
	await.NoError(t, ctx, 30*time.Second, "the page of rivulet.local has b and c", func() error {
		_, body := visit(t, ctx, b, "http://"+lan+"/", "--header", "Host: rivulet.local")
		if !strings.Contains(body, `href="http://b.local">b<`) || !strings.Contains(body, `href="http://c.local">c<`) || !strings.Contains(body, ", this device") {
			return errors.New(body)
		}
		return nil
	})

	// The device's own screen says the same.
	for _, want := range []string{"c\nready", "http://c.local", lan, "ok node", "ok API"} {
		if got := labtest.Must(t, ctx, c, "rivulet", "console"); !strings.Contains(got, want) {
			t.Errorf("the console lacks %q:\n%s", want, got)
		}
	}

	// A Service that wants port 80 gets it; the page stays on its other port.
	labtest.Must(t, ctx, c, "rivulet", "kubectl", "create", "service", "loadbalancer", "web", "--tcp=80:80")
	await.NoError(t, ctx, 30*time.Second, "the Service has the address", func() error {
		if got := labtest.Must(t, ctx, c, "rivulet", "kubectl", "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"); !strings.Contains(got, lan) {
			return errors.New(got)
		}
		return nil
	})
	if code, _ := visit(t, ctx, b, "http://"+lan+":7480/"); code != "200" {
		t.Errorf("beside a Service on port 80: %s", code)
	}
	labtest.Must(t, ctx, c, "rivulet", "kubectl", "delete", "service", "web")
	write(t, ctx, c, cFile, "statusPage: false\n")
	await.NoError(t, ctx, 30*time.Second, "the page is gone", func() error {
		if code, _ := visit(t, ctx, b, "http://"+lan+":7480/"); code != "000" {
			return errors.New(code)
		}
		return nil
	})
	write(t, ctx, c, cFile, "")
	labtest.Must(t, ctx, c, "rm", systemd.ImageMark)
}
