// Command s3 serves the directories below -dir as S3 buckets, with versions and object lock.
// The credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	dir := flag.String("dir", "", "directory that holds the buckets and their old versions")
	listen := flag.String("listen", "127.0.0.1:9000", "address to serve on")
	flag.Parse()
	if err := serve(*dir, *listen); err != nil {
		log.Fatal(err)
	}
}

func serve(dir, listen string) error {
	buckets, versions := filepath.Join(dir, "buckets"), filepath.Join(dir, "versions")
	for _, d := range []string{buckets, versions} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	backend, err := posix.New(buckets, meta.XattrMeta{}, posix.PosixOpts{VersioningDir: versions, Concurrency: 64})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
		RootUserAccess:    os.Getenv("AWS_ACCESS_KEY_ID"),
		RootUserSecret:    os.Getenv("AWS_SECRET_ACCESS_KEY"),
		Ports:             []string{listen},
		HealthPath:        "/healthz",
		KeepAlive:         true,
		Quiet:             true,
		MaxConnections:    1024,
		MaxRequests:       512,
		MultipartMaxParts: 10000,
	})
}
