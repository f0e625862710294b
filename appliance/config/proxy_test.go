package config

import (
	"net/url"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/http/httpproxy"
)

// TestWhatIsOurOwnGoesToNoProxy: k3s leaves nodes out of NO_PROXY, and then logs and exec fail behind a proxy.
func TestWhatIsOurOwnGoesToNoProxy(t *testing.T) {
	clean := func() {
		for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
			t.Setenv(name, "")
			t.Setenv(strings.ToLower(name), "")
		}
	}
	by := func(to string) string {
		u, err := url.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		proxy, err := httpproxy.FromEnvironment().ProxyFunc()(u)
		if err != nil || proxy == nil {
			return ""
		}
		return proxy.String()
	}
	const proxy = "http://me:word@proxy.example:3128"
	for what, begin := range map[string]func() Config{
		"by the configuration": func() Config {
			return Config{Proxy: Proxy{URL: proxy, Except: []string{"campus.example", "192.168.7.0/24"}}}
		},
		"by the environment": func() Config {
			t.Setenv("https_proxy", proxy)
			t.Setenv("http_proxy", proxy)
			t.Setenv("NO_PROXY", "campus.example,192.168.7.0/24")
			return Config{}
		},
		"with a block of its own for peers": func() Config {
			return Config{Proxy: Proxy{URL: proxy, Except: []string{"campus.example", "192.168.7.0/24"}}, Tunnel: Tunnel{PeerCIDR: "240.0.0.0/4"}}
		},
	} {
		clean()
		begin().UseProxy()
		for _, own := range []string{"https://198.19.7.7:10250/exec", "https://10.42.0.9:8443", "https://10.43.0.1:443", "http://240.3.0.9", "https://127.0.0.1:6443",
			"http://web.shop.svc", "http://web.shop.svc.cluster.local", "https://lab-2.local:7443", "https://api.campus.example", "https://192.168.7.9"} {
			if got := by(own); got != "" {
				t.Errorf("%s: %s goes to %s", what, own, got)
			}
		}
		for _, far := range []string{"https://registry-1.docker.io/v2/", "http://deb.example", "https://192.168.8.9"} {
			if got := by(far); got != proxy {
				t.Errorf("%s: %s goes to %q", what, far, got)
			}
		}
	}
	clean()
	Config{}.UseProxy()
	if os.Getenv("NO_PROXY") != "" || by("https://registry-1.docker.io") != "" {
		t.Error("without a proxy something is set")
	}
}

func TestProxyIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		"proxy: {url: http://proxy.example:3128}":                                   "",
		"proxy: {url: \"http://me:p%40ss@10.0.0.1:8080\", except: [.example, a.b]}": "",
		"proxy: {url: proxy.example:3128}":                                          "http://proxy.example:3128",
		"proxy: {url: ftp://proxy.example}":                                         "http://proxy.example:3128",
		"proxy: {except: [\"http://a.b/c\"]}":                                       "intranet.example",
	} {
		out := Parse([]byte(text+"\n"), Options{File: "f", Mode: 0o600})
		if got := out.Problems.Error(); (want == "") != (len(out.Problems) == 0) || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	_, card := ParseCard([]byte("proxy: {url: \"http://me:word@proxy.example:3128\"}\n"), Options{File: CardName})
	if len(card.Problems) != 1 || !strings.Contains(card.Problems[0].Error(), DefaultPath) || strings.Contains(card.Problems.Error(), "word@") {
		t.Errorf("a password on a card: %v", card.Problems)
	}
}
