package config

import (
	"cmp"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"rivulet/appliance/config/fixed"
	"rivulet/fabric/cure"
)

// Proxy is how servers beyond the LAN are reached: registries, burst targets.
type Proxy struct {
	// URL is a secret, since it may contain a password.
	URL    Secret   `yaml:"url,omitempty" json:"url,omitempty"`
	Except []string `yaml:"except,omitempty,flow" json:"except,omitempty"`
}

// password reports whether the URL has one.
func (p Proxy) password() bool {
	u, err := url.Parse(p.URL.Reveal())
	return err == nil && u.User != nil
}

// UseProxy sets the variables of the environment by which this process, the engine and its children find the proxy, for
// their lifetime. What is this cluster's own never goes there, also where only the environment names a proxy: its nodes,
// pods and Services, and the pods of peers.
func (c Config) UseProxy() {
	if c.Proxy.URL != "" {
		for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
			setBoth(name, c.Proxy.URL.Reveal())
		}
	}
	get := func(name string) string { return os.Getenv(name) + os.Getenv(strings.ToLower(name)) }
	if get("HTTP_PROXY")+get("HTTPS_PROXY") == "" {
		return
	}
	direct := []string{"localhost", "127.0.0.0/8", "::1", ".svc", "." + fixed.ClusterDomain, ".local"}
	for _, p := range append(slices.Clone(fixed.Networks), c.Tunnel.Block()) {
		direct = append(direct, p.String())
	}
	direct = append(direct, c.Proxy.Except...)
	for _, given := range strings.Split(cmp.Or(os.Getenv("NO_PROXY"), os.Getenv("no_proxy")), ",") {
		if given != "" && !slices.Contains(direct, given) { // a version that starts another one leaves it these
			direct = append(direct, given)
		}
	}
	setBoth("NO_PROXY", strings.Join(direct, ","))
}

// setBoth sets a variable in both spellings: some programs read one only.
func setBoth(name, value string) {
	_ = os.Setenv(name, value) // fails for names that are none
	_ = os.Setenv(strings.ToLower(name), value)
}

func checkProxy(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme) {
		return cure.Errorf("it is not the address of a proxy; write http://proxy.example:3128, and characters such as / @ # %% of a password as %%2F %%40 %%23 %%25")
	}
	return nil
}

// checkExcept checks a name, a domain with a dot before it, an address or a network.
func checkExcept(s string) error {
	_, addr := netip.ParseAddr(s)
	_, net := netip.ParsePrefix(s)
	if addr != nil && net != nil && (s == "" || strings.ContainsAny(s, ", /*@\t")) {
		return cure.Errorf("%q is no name, address or network; write intranet.example, .example or 192.168.0.0/16", s)
	}
	return nil
}
