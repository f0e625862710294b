package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rivulet/appliance/api"
)

// defaultUser has what the owner has.
const defaultUser = "owner"

func newKubeconfig(c *common) *cobra.Command {
	q := api.KubeconfigRequest{}
	var life, server string
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "a kubeconfig for a laptop on the LAN, printed",
		Long: "It works through the control port (TCP 7442), which is open to the LAN, until it expires or is revoked; open connections end with it.\n" +
			"Without --namespace it is for the whole cluster, and --role admin may do all that root may do here. The file holds a private key, which the device does not keep.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if q.For, err = lifetime(life); err != nil {
				return err
			}
			file, made, err := kubeconfigFor(cmd, c, q, server)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if err := keepPrivate(out); err != nil {
				return err
			}
			if _, err := out.Write(file); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "user %s, role %s, until %s; to end it: sudo rivulet kubeconfig revoke %s\n", made.User, of(made.Kubeconfig), made.Expires.Local().Format(time.DateTime), made.User)
			if len(made.Servers) > 1 {
				fmt.Fprintln(cmd.ErrOrStderr(), "the device is also at "+strings.Join(made.Servers[1:], ", ")+"; choose with --server")
			}
			if made.Warning != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+made.Warning)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.User, "user", defaultUser, "whose it is: a name of your choice, by which it is listed and revoked")
	f.StringVar(&life, "for", "30d", "how long it works: 30d, 12h, 45m")
	f.StringVarP(&q.Namespace, "namespace", "n", "", "the one namespace that it is for; default: the whole cluster")
	f.StringVar(&q.Role, "role", "admin", "view, edit or admin")
	f.StringVar(&server, "server", "", "address or name of this device for the laptop; default: its first address on the LAN")
	f.BoolVar(&q.Replace, "replace", false, "end what the user had")
	cmd.AddCommand(newKubeconfigList(c), newKubeconfigRevoke(c))
	return cmd
}

func newKubeconfigList(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "who has access from the LAN, and who had it in the last 30 days",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var l api.Kubeconfigs
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodGet, "/v1/kubeconfigs", nil, &l); err != nil {
				return err
			}
			if c.forProgram() {
				return c.print(cmd.OutOrStdout(), l)
			}
			return printKubeconfigs(cmd.OutOrStdout(), l, c.output == "wide")
		},
	}
	outputFlag(cmd, c, "wide")
	return cmd
}

func newKubeconfigRevoke(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke USER",
		Short: "end a user's access at once, open connections included",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("revoke takes the name of one user; see: rivulet kubeconfig list, and: rivulet kubeconfig revoke --help")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := confirm(cmd, "the access of "+args[0]+" ends at once, open connections included"); err != nil {
				return err
			}
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodDelete, "/v1/kubeconfigs/"+url.PathEscape(args[0]), nil, nil); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s has no access any more\n", args[0])
			return err
		},
	}
	yesFlag(cmd)
	return cmd
}

// lifetime reads a duration that may be in days.
func lifetime(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	} else if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	return 0, usagef("--for %s is no time; for example: --for 30d, or --for 12h; see: rivulet kubeconfig --help", text)
}

// kubeconfigFor makes a key, has it accepted, and returns the file.
func kubeconfigFor(cmd *cobra.Command, c *common, q api.KubeconfigRequest, server string) ([]byte, api.NewKubeconfig, error) {
	var made api.NewKubeconfig
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, made, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: q.User, Organization: []string{"rivulet"}},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(q.For),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if q.Certificate, err = x509.CreateCertificate(rand.Reader, template, template, key.Public(), key); err != nil {
		return nil, made, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, made, err
	}
	end := busy("waiting for the API server")
	err = api.CallWithin(cmd.Context(), time.Minute, c.dirs.Run, http.MethodPost, "/v1/kubeconfigs", q, &made)
	end()
	if err != nil {
		return nil, made, err
	}
	if server != "" {
		if !strings.Contains(server, "://") {
			server = "https://" + server
		}
		if u, err := url.Parse(server); err == nil && u.Port() == "" {
			server += ":7442"
		}
		made.Servers = []string{server}
	}
	if len(made.Servers) == 0 {
		made.Servers = []string{"https://" + made.Cluster + ".local:7442"}
	}
	name := made.Cluster
	out := clientcmdapi.NewConfig()
	out.Clusters[name] = &clientcmdapi.Cluster{Server: made.Servers[0], TLSServerName: made.ServerName, CertificateAuthorityData: made.Authority}
	out.AuthInfos[made.User] = &clientcmdapi.AuthInfo{
		ClientCertificateData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: q.Certificate}),
		ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: made.User, Namespace: made.Namespace}
	out.CurrentContext = name
	text, err := clientcmd.Write(*out)
	if err != nil {
		return nil, made, err
	}
	return text, made, nil
}

// keepPrivate closes the file that the shell has made for the output to others.
func keepPrivate(out io.Writer) error {
	f, ok := out.(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	return f.Chmod(0o600)
}

func of(k api.Kubeconfig) string {
	if k.Namespace == "" {
		return k.Role + " of the cluster"
	}
	return k.Role + " of " + k.Namespace
}

func printKubeconfigs(out io.Writer, l api.Kubeconfigs, wide bool) error {
	if len(l.Kubeconfigs) == 0 {
		_, err := fmt.Fprintln(out, "nobody has access from the LAN; make a kubeconfig with: sudo rivulet kubeconfig > FILE")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head, more := "USER\tROLE\tNAMESPACE\tSTATE\tEXPIRES\tLAST USED\tCONNECTIONS", ""
	if wide {
		head += "\tMADE\tREVOKED"
	}
	fmt.Fprintln(w, head)
	for _, k := range l.Kubeconfigs {
		if wide {
			more = "\t" + moment(k.Made) + "\t" + moment(k.Revoked)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d%s\n", k.User, k.Role, dash(k.Namespace), k.State, moment(k.Expires), moment(k.Used), k.Connections, more)
	}
	return w.Flush()
}

// moment is a time as tables have it.
func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}
