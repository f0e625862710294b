package external

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"

	"rivulet/offload/foreign"
)

// Credential is a kubeconfig reduced to what is needed for one namespace: one context, one user, one cluster. Inline
// data of the file is copied; files of tokens, certificates and keys, and commands, stay references, so that their
// renewal takes effect.
type Credential struct {
	Kubeconfig []byte `json:"kubeconfig"`
	Namespace  string `json:"namespace"` // the context's; "default" if it names none
	Server     string `json:"server"`
}

// ReadCredential reads a kubeconfig. Paths in it are relative to the folder dir; context selects one of several, empty
// is the current one. A server that anybody on the way can be is refused, unless insecure. So are files and a plug-in
// that others can change: see Trusted.
func ReadCredential(raw []byte, dir, context string, insecure bool) (Credential, error) {
	file, err := clientcmd.Load(raw)
	if err != nil {
		// The library's message may quote the content.
		return Credential{}, errors.New("this is no kubeconfig; ask the cluster's administrator for one")
	}
	if len(file.Contexts) == 0 {
		return Credential{}, errors.New("this kubeconfig has no context; ask the cluster's administrator for a complete one")
	}
	names := slices.Sorted(maps.Keys(file.Contexts))
	switch {
	case context != "":
		if file.Contexts[context] == nil {
			return Credential{}, fmt.Errorf("this kubeconfig has no context %.60q; choose one of %s with --context", context, strings.Join(names, ", "))
		}
	case file.Contexts[file.CurrentContext] != nil:
		context = file.CurrentContext
	case len(names) == 1:
		context = names[0]
	default:
		return Credential{}, fmt.Errorf("this kubeconfig has several contexts and none of them is current; choose one of %s with --context", strings.Join(names, ", "))
	}
	chosen := file.Contexts[context]
	cluster, user := file.Clusters[chosen.Cluster], file.AuthInfos[chosen.AuthInfo]
	if cluster == nil || cluster.Server == "" {
		return Credential{}, fmt.Errorf("context %s of this kubeconfig names no server; ask the cluster's administrator for a complete one", context)
	}
	if user == nil {
		return Credential{}, fmt.Errorf("context %s of this kubeconfig names user %q, who is not in it; ask the cluster's administrator for a complete one", context, chosen.AuthInfo)
	}
	if plain := !strings.HasPrefix(strings.ToLower(cluster.Server), "https://"); (plain || cluster.InsecureSkipTLSVerify) && !insecure {
		return Credential{}, fmt.Errorf("this kubeconfig does not verify who %s is (insecure-skip-tls-verify, or no https), so anybody on the way gets its credential; ask the cluster's administrator for one with certificate-authority-data, or allow it: --insecure-skip-tls-verify, in the configuration insecureSkipTLSVerify: true", cluster.Server)
	}
	if err := gather(cluster, user, dir); err != nil {
		return Credential{}, err
	}
	namespace := chosen.Namespace
	if namespace == "" {
		namespace = "default"
	}
	small := clientcmdapi.NewConfig()
	small.CurrentContext = "burst"
	small.Clusters["burst"], small.AuthInfos["burst"] = cluster, user
	small.Contexts["burst"] = &clientcmdapi.Context{Cluster: "burst", AuthInfo: "burst", Namespace: namespace}
	out, err := clientcmd.Write(*small)
	if err != nil {
		return Credential{}, fmt.Errorf("burst: kubeconfig: %w", err)
	}
	return Credential{Kubeconfig: out, Namespace: namespace, Server: cluster.Server}, nil
}

// gather makes the parts independent of their file.
func gather(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo, dir string) error {
	if cluster.CertificateAuthority != "" && len(cluster.CertificateAuthorityData) == 0 {
		path := absolute(dir, cluster.CertificateAuthority)
		err := Trusted(path)
		var data []byte
		if err == nil {
			data, err = os.ReadFile(path)
		} else if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the kubeconfig's certificate-authority: %w", err)
		}
		if err != nil {
			return fmt.Errorf("the kubeconfig's certificate-authority: %w; bring that file along", err)
		}
		cluster.CertificateAuthorityData = data
	}
	cluster.CertificateAuthority, cluster.LocationOfOrigin = "", ""
	user.LocationOfOrigin = ""
	for _, file := range []struct { // in this order, so that of two faults always the same one is told
		what string
		path *string
	}{{"client-certificate", &user.ClientCertificate}, {"client-key", &user.ClientKey}, {"tokenFile", &user.TokenFile}} {
		if *file.path == "" {
			continue
		}
		*file.path = absolute(dir, *file.path)
		f, err := os.Open(*file.path)
		if err != nil {
			return fmt.Errorf("the kubeconfig's %s: %w; bring that file along", file.what, err)
		}
		f.Close()
		if err := Trusted(*file.path); err != nil {
			return fmt.Errorf("the kubeconfig's %s: %w", file.what, err)
		}
	}
	if user.AuthProvider != nil {
		return fmt.Errorf("the kubeconfig's user needs auth-provider %q, which Kubernetes has given up; ask for one with an exec plug-in or a token", user.AuthProvider.Name)
	}
	if e := user.Exec; e != nil {
		e.InteractiveMode = clientcmdapi.NeverExecInteractiveMode
		if strings.Contains(e.Command, "/") {
			e.Command = absolute(dir, e.Command)
		}
		found, err := exec.LookPath(e.Command)
		if err != nil {
			hint := "install it on this device"
			if e.InstallHint != "" {
				hint = strings.Join(strings.Fields(e.InstallHint), " ")
			}
			return fmt.Errorf("the kubeconfig's user is authenticated by the command %q, which is not here; %s", e.Command, hint)
		}
		if e.Command, err = filepath.Abs(found); err != nil {
			return err
		}
		if err := Trusted(e.Command); err != nil {
			return fmt.Errorf("the kubeconfig's plug-in: %w", err)
		}
	}
	if user.Exec == nil && user.Token == "" && user.TokenFile == "" && user.Username == "" &&
		user.ClientCertificate == "" && len(user.ClientCertificateData) == 0 {
		return errors.New("the kubeconfig has no credential (token, client certificate, exec plug-in) for its user; ask the cluster's administrator for a complete one")
	}
	return nil
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// Origin is whose answers those of the cluster are.
func (c Credential) Origin() foreign.Origin {
	return foreign.Origin{Name: c.Server, Cure: "rivulet burst list"}
}

// REST makes the client's configuration: all connections to the cluster are made with it.
func (c Credential) REST() (*rest.Config, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("burst: kubeconfig: %w", err)
	}
	for _, path := range []string{config.BearerTokenFile, config.CertFile, config.KeyFile} {
		if path == "" {
			continue
		}
		if err := Trusted(path); err != nil {
			return nil, fmt.Errorf("burst: kubeconfig: %w", err)
		}
	}
	if config.ExecProvider != nil {
		if err := confine(config.ExecProvider); err != nil {
			return nil, fmt.Errorf("burst: kubeconfig: %w", err)
		}
	}
	config.Host = strings.TrimRight(config.Host, "/") // paths are appended to it
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "rivulet"
	if path := config.BearerTokenFile; path != "" {
		// By itself the library reads the file once a minute only, also after its token is refused.
		config.BearerToken, config.BearerTokenFile = "", ""
		config.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(path)))
	}
	if err := foreign.Guard(config, c.Origin()); err != nil {
		return nil, fmt.Errorf("burst: %w", err)
	}
	return config, nil
}

// Ends is when the credential expires, by the client certificate's date or the token's; the zero time if unknown.
func (c Credential) Ends() time.Time {
	_, to := c.life()
	return to
}

// Due is when a renewed credential should have been renewed: after nine tenths of its life. The zero time if unknown.
func (c Credential) Due() time.Time {
	from, to := c.life()
	if from.IsZero() || !to.After(from) {
		return to
	}
	return from.Add(to.Sub(from) / 10 * 9)
}

func (c Credential) life() (from, to time.Time) {
	file, err := clientcmd.Load(c.Kubeconfig)
	if err != nil || file.AuthInfos["burst"] == nil {
		return from, to
	}
	user := file.AuthInfos["burst"]
	cert := user.ClientCertificateData
	if len(cert) == 0 && user.ClientCertificate != "" {
		cert, _ = os.ReadFile(user.ClientCertificate) // the next request reports a missing file
	}
	if block, _ := pem.Decode(cert); block != nil {
		if x, err := x509.ParseCertificate(block.Bytes); err == nil {
			return x.NotBefore, x.NotAfter
		}
	}
	token := user.Token
	if user.TokenFile != "" {
		data, _ := os.ReadFile(user.TokenFile)
		token = strings.TrimSpace(string(data))
	}
	return tokenLife(token)
}

// Uses describes, in a sentence, what the kubeconfig has this device run, or read and send to the server; empty if
// nothing.
func (c Credential) Uses() string {
	file, err := clientcmd.Load(c.Kubeconfig)
	if err != nil || file.AuthInfos["burst"] == nil {
		return ""
	}
	user := file.AuthInfos["burst"]
	switch e := user.Exec; {
	case e != nil:
		return fmt.Sprintf("this kubeconfig runs a command on this device, as the user nobody, again and again: %q", append([]string{e.Command}, e.Args...))
	case user.TokenFile != "":
		return fmt.Sprintf("this kubeconfig sends the content of the file %q to %q", user.TokenFile, c.Server)
	case user.ClientCertificate != "":
		return fmt.Sprintf("this kubeconfig uses the files %q and %q of this device for %q", user.ClientCertificate, user.ClientKey, c.Server)
	}
	return ""
}

// Renewed is what renews the credential, empty if nothing does.
func (c Credential) Renewed() string {
	file, err := clientcmd.Load(c.Kubeconfig)
	if err != nil || file.AuthInfos["burst"] == nil {
		return ""
	}
	switch user := file.AuthInfos["burst"]; {
	case user.Exec != nil:
		return "command " + user.Exec.Command
	case user.TokenFile != "":
		return "file " + user.TokenFile
	case user.ClientCertificate != "":
		return "file " + user.ClientCertificate
	}
	return ""
}
