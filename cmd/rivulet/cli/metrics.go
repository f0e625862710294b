package cli

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/network/users"
)

func newMetrics(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "print the metrics of the running appliance, in the text format of Prometheus",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			resp, err := api.Do(cmd.Context(), c.dirs.Run, http.MethodGet, "/v1/metrics", nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(cmd.OutOrStdout(), resp.Body)
			return err
		},
	}
	cmd.AddCommand(newMetricsGrant(c), newMetricsList(c), newMetricsRevoke(c))
	return cmd
}

func newMetricsGrant(c *common) *cobra.Command {
	var dir, server string
	var certificate bool
	cmd := &cobra.Command{
		Use:   "grant NAME",
		Short: "give a Prometheus access to the metrics, and print its configuration",
		Long: "The configuration has the address, the device's certificate and a token, or with --certificate a client certificate. The device stores only hashes of them.\n" +
			"With --dir they are files in that folder, for every version of Prometheus; without, all is in the configuration, for version 2.48 and later.\n" +
			"The key metrics of the configuration opens the port: lan or pods.",
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := scraper{dir: dir, name: args[0]}
			if err := s.free(); err != nil {
				return err
			}
			q := api.MetricsRequest{Name: args[0]}
			if certificate {
				if err := s.newKey(&q); err != nil {
					return err
				}
			}
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/metrics/access", q, &s.made); err != nil {
				return err
			}
			s.target(server)
			text, err := s.config()
			if err != nil {
				return err
			}
			if dir == "" {
				if err := keepPrivate(cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			if _, err := cmd.OutOrStdout().Write(text); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "to end this access: sudo rivulet metrics revoke %s\n", s.name)
			if s.made.Setting == config.MetricsOff {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning: the port is closed; open it with metrics: lan (or pods) in "+config.DefaultPath)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "folder for token or key, and certificates; default: they are in the configuration")
	f.StringVar(&server, "server", "", "address or name of this device for Prometheus; default: its first address on the LAN, or the node's for pods")
	f.BoolVar(&certificate, "certificate", false, "access by a client certificate in place of a token")
	return cmd
}

func newMetricsList(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use:   "list",
		Short: "list who has access to the metrics over the network",
		Args:  noArgs,
		RunE: get(c, "/v1/metrics/access", func(out io.Writer, l api.MetricsAccesses, _ bool) error {
			if l.Setting == config.MetricsOff && len(l.Accesses) > 0 {
				fmt.Fprintln(out, "the port is closed; open it with metrics: lan (or pods) in "+config.DefaultPath)
			}
			return table(out, "nobody has access to the metrics over the network; give it with: sudo rivulet metrics grant NAME", "NAME\tBY\tMADE\tLAST USED\tFROM", l.Accesses, func(a api.MetricsAccess) []any {
				return []any{a.Name, a.By, moment(a.Made), moment(a.Used), dash(a.From)}
			})
		}),
	})
}

func newMetricsRevoke(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "end an access to the metrics at once",
		Args:  takes(1, "revoke takes the name of one access; see: rivulet metrics list, and: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			scrapers, err := c.scraperNames(cmd.Context(), cmd)
			if err := known("access to the metrics of", args[0], "rivulet metrics list", scrapers, err); err != nil {
				return err
			}
			if err := confirm(cmd, "end the access of "+args[0]+" to the metrics", "it ends at once"); err != nil {
				return err
			}
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodDelete, "/v1/metrics/access/"+url.PathEscape(args[0]), nil, nil); err != nil {
				return err
			}
			return printf(cmd, "%s has no access to the metrics any more\n", args[0])
		},
	}
	yesFlag(cmd)
	return cmd
}

// scraper is the configuration of a Prometheus that is being made.
type scraper struct {
	dir, name string
	made      api.NewMetricsAccess
	cert, key []byte // PEM; nil with a token
}

// free checks that the folder has no access of that name, before one is given.
func (s *scraper) free() error {
	if s.dir == "" {
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("%w; choose another folder with --dir", err)
	}
	for _, end := range []string{".token", ".key"} {
		if _, err := os.Lstat(s.path(end)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there already; remove it, or choose another folder with --dir", s.path(end))
		}
	}
	return nil
}

func (s *scraper) path(end string) string { return filepath.Join(s.dir, "rivulet-"+s.name+end) }

// newKey makes the key of a client certificate; the device gets only the certificate.
func (s *scraper) newKey(q *api.MetricsRequest) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if q.Certificate, err = users.Certificate(key, q.Name, time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)); err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	s.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: q.Certificate})
	s.key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	return nil
}

// target puts another address of the device in front.
func (s *scraper) target(server string) {
	port := strconv.Itoa(api.MetricsPort)
	switch _, _, err := net.SplitHostPort(server); {
	case server == "" && len(s.made.Targets) == 0:
		s.made.Targets = []string{net.JoinHostPort(s.made.Device+".local", port)}
	case server == "":
		s.made.Targets = s.made.Targets[:1]
	case err != nil:
		s.made.Targets = []string{net.JoinHostPort(server, port)}
	default:
		s.made.Targets = []string{server}
	}
}

// config is the scrape configuration; with a folder it writes the files that it names.
func (s *scraper) config() ([]byte, error) {
	type object = map[string]any
	tls, job := object{"server_name": s.made.ServerName}, object{
		"job_name": "rivulet-" + s.made.Device, "scheme": "https", "scrape_interval": "30s",
		"static_configs": []object{{"targets": s.made.Targets, "labels": object{"device": s.made.Device}}},
	}
	// value is in a file of the folder, or in the configuration itself.
	value := func(in object, key, end string, content []byte) error {
		if s.dir == "" {
			in[key] = string(content)
			return nil
		}
		in[key+"_file"] = filepath.Base(s.path(end))
		return os.WriteFile(s.path(end), content, 0o600)
	}
	err := value(tls, "ca", ".ca.crt", s.made.Authority)
	if s.key != nil {
		err = errors.Join(err, value(tls, "cert", ".crt", s.cert), value(tls, "key", ".key", s.key))
	} else {
		login := object{"type": "Bearer"}
		err = errors.Join(err, value(login, "credentials", ".token", []byte(s.made.Token)))
		job["authorization"] = login
	}
	if err != nil {
		return nil, fmt.Errorf("%w; the access is given, and its files are not all written: sudo rivulet metrics revoke %s, and run this again", err, s.name)
	}
	job["tls_config"] = tls
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(object{"scrape_configs": []object{job}}); err != nil {
		return nil, err
	}
	if s.dir != "" {
		fmt.Fprintf(&b, "# The files are in %s, beside which this belongs.\n", s.dir)
	}
	return b.Bytes(), enc.Close()
}
