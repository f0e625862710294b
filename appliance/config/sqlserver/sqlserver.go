// Package sqlserver reads the address of an SQL server for the objects of a cluster, as k3s takes it, and connects to
// it. It has no state. Its errors name the host, the port and the database, and never the password.
package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"syscall"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // SQL driver, also the engine's

	"rivulet/fabric/cure"
)

// Server is one database of an SQL server, and how to sign in to it.
type Server struct {
	Kind     string // PostgreSQL or MySQL
	Address  string // host:port
	Database string
	User     string

	address  string // as given
	password string
	tls      string // as given; "" is none or by chance
}

const (
	postgres = "postgres://"
	mySQL    = "mysql://"
)

// Parse reads an address; an error does not quote it.
func Parse(address string) (s Server, err error) {
	s.address = address
	if given, ok := strings.CutPrefix(address, mySQL); ok {
		c, err := mysql.ParseDSN(given)
		if err != nil || c.Net != "tcp" || c.DBName == "" || c.User == "" {
			return s, cure.Errorf("it is not the address of a MySQL or MariaDB database; write mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE")
		}
		s.Kind, s.Address, s.Database, s.User, s.password = "MySQL", c.Addr, c.DBName, c.User, c.Passwd
		if s.tls = c.TLSConfig; s.tls == "preferred" {
			s.tls = ""
		}
		return s, nil
	}
	if !strings.HasPrefix(address, postgres) {
		return s, cure.Errorf("it is the address of neither PostgreSQL nor MySQL; write postgres://USER:PASSWORD@HOST:5432/DATABASE or mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE")
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.User.Username() == "" || strings.Trim(u.Path, "/") == "" || strings.Count(u.Path, "/") > 1 {
		return s, cure.Errorf("it is not the address of a PostgreSQL database; write postgres://USER:PASSWORD@HOST:5432/DATABASE, and characters such as / @ # %% of the password as %%2F %%40 %%23 %%25")
	}
	s.Kind, s.Database, s.User = "PostgreSQL", u.Path[1:], u.User.Username()
	s.password, _ = u.User.Password()
	if s.tls = u.Query().Get("sslmode"); s.tls == "prefer" || s.tls == "allow" {
		s.tls = ""
	}
	if s.Database != strings.ToLower(s.Database) {
		return s, cure.Errorf("the name of the database has capital letters, which k3s writes small; use a database with a name in small letters")
	}
	port := u.Port()
	if port == "" {
		port = "5432"
	}
	s.Address = net.JoinHostPort(u.Hostname(), port)
	return s, nil
}

// Check returns an error if text is not such an address, or leaves it to chance whether a network sees the password and
// all Secrets.
func Check(text string) error {
	s, err := Parse(text)
	if err != nil || s.tls != "" || s.onThisMachine() {
		return err
	}
	verified, clear := "sslmode=verify-full", "sslmode=disable"
	if s.Kind == "MySQL" {
		verified, clear = "tls=true", "tls=false"
	}
	return cure.Errorf("it does not say whether the connection is encrypted, by which the password and all Secrets go; write ?%s at its end, or ?%s where nobody else is on the way to %s", verified, clear, s.Address)
}

func (s Server) onThisMachine() bool {
	host, _, _ := net.SplitHostPort(s.Address)
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// Secrets are the parts of an address that must not be seen.
func Secrets(address string) []string {
	s, _ := Parse(address)
	return []string{address, s.password, url.QueryEscape(s.password), url.PathEscape(s.password)}
}

// String names the database, without the user.
func (s Server) String() string {
	return fmt.Sprintf("%s at %s, database %s", s.Kind, s.Address, s.Database)
}

// Open returns the database; it does not connect yet.
func (s Server) Open() (*sql.DB, error) {
	if s.Kind == "PostgreSQL" {
		db, err := sql.Open("pgx", s.address)
		return db, s.Explain(err)
	}
	c, err := mysql.ParseDSN(strings.TrimPrefix(s.address, mySQL))
	if err != nil {
		return nil, s.Explain(err)
	}
	c.Logger = &mysql.NopLogger{} // each error is returned as well
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, s.Explain(err)
	}
	return sql.OpenDB(connector), nil
}

// Schema is the SQL expression of the schema in which unnamed tables are.
func (s Server) Schema() string {
	if s.Kind == "PostgreSQL" {
		return "current_schema()"
	}
	return "DATABASE()"
}

// Bind returns a statement with this server's form of the parameters "?".
func (s Server) Bind(statement string) string {
	for n := 1; s.Kind == "PostgreSQL" && strings.Contains(statement, "?"); n++ {
		statement = strings.Replace(statement, "?", fmt.Sprintf("$%d", n), 1)
	}
	return statement
}

// NoTable reports whether a statement has failed because a table is not there.
func NoTable(err error) bool {
	var pg *pgconn.PgError
	var my *mysql.MySQLError
	return (errors.As(err, &pg) && pg.Code == "42P01") || (errors.As(err, &my) && my.Number == 1146)
}

// Explain returns the error of a statement or connection with the database's name and a cure; nil stays nil.
func (s Server) Explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	var pg *pgconn.PgError
	var my *mysql.MySQLError
	var dial *net.OpError
	var errno syscall.Errno
	var text, code string
	switch {
	case errors.As(err, &pg):
		text, code = pg.Message, pg.Code
	case errors.As(err, &my):
		text, code = my.Message, fmt.Sprint(my.Number)
	case errors.Is(err, context.DeadlineExceeded):
		text = "it does not answer"
	case errors.As(err, &errno):
		text = errno.Error()
	case errors.As(err, &dial):
		text = dial.Err.Error()
	default:
		text, _, _ = strings.Cut(err.Error(), "\n")
	}
	help := fmt.Sprintf("start the SQL server at %s, or look at the network to it; it goes on by itself then", s.Address)
	switch code {
	case "28P01", "28000", "1045":
		help = fmt.Sprintf("correct the user or the password of %s in datastore of the configuration", s.Address)
	case "3D000", "1049":
		help = fmt.Sprintf("create it at %s: CREATE DATABASE %s; it goes on by itself then", s.Address, s.Database)
	case "42501", "1044", "1142":
		help = fmt.Sprintf("give user %s all rights in database %s at %s, as its owner has; it goes on by itself then", s.User, s.Database, s.Address)
	}
	return &cure.Error{Err: fmt.Errorf("%s: %s", s, text), Cure: help}
}
